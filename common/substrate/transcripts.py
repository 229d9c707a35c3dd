"""Transcripts: what a task's history is made of, and the marks of its calls. Reading only; the owner writes."""

import asyncio
import logging
from collections.abc import Iterable
from typing import cast

import orjson

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.messages import Line
from celeriac.common.substrate.connection import Connection, mapping
from celeriac.common.substrate.types import Mark, MarkState

log = logging.getLogger(__name__)

_MANY_LINES = 200
"""From here on parsing moves to a thread, so that a long history does not hold up the other agents of the process."""
_DONE = f"{MarkState.DONE.value} "


class Transcripts:
    """The transcripts of all tasks."""

    def __init__(self, connection: Connection) -> None:
        """Over one connection."""
        self._connection = connection

    async def lines(self, task_id: TaskId, start: int = 0, stop: int | None = None) -> tuple[Line, ...]:
        """Lines from number `start` on, up to but without `stop`; one that cannot be read is logged and left out."""
        key = self._connection.keys.task(task_id, "x")
        last = -1 if stop is None else stop - 1
        if stop is not None and stop <= start:
            return ()
        raw = cast("list[bytes]", await self._connection.command("LRANGE", key, start, last))
        if len(raw) < _MANY_LINES:
            return _parse(task_id, start, raw)
        return await asyncio.to_thread(_parse, task_id, start, raw)

    async def marks(self, task_id: TaskId) -> dict[str, Mark]:
        """tool_use id → its start mark or kept result."""
        found = mapping(await self._connection.command("HGETALL", self._connection.keys.task(task_id, "tools")))
        return {tool: _mark(value) for tool, value in found.items()}


def _parse(task_id: TaskId, start: int, raw: Iterable[bytes]) -> tuple[Line, ...]:
    lines = (_line(task_id, start + offset, data) for offset, data in enumerate(raw))
    return tuple(line for line in lines if line is not None)


def _line(task_id: TaskId, number: int, data: bytes) -> Line | None:
    """One damaged line must not take a whole history with it (C94)."""
    try:
        return Line.model_validate(orjson.loads(data))
    except ValueError as error:  # ValidationError is one
        log.warning("%s: line %d of the transcript cannot be read and is left out: %s", task_id, number, error)
        return None


def _mark(value: str) -> Mark:
    if value.startswith(_DONE):
        return Mark(MarkState.DONE, value.removeprefix(_DONE).encode())
    return Mark(MarkState.STARTED)
