"""Transcripts: what a task's history is made of, and the marks of its calls. Reading only; the owner writes."""

import asyncio
from collections.abc import Iterable
from typing import cast

import orjson

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.messages import Line
from celeriac.common.substrate.connection import Connection, mapping
from celeriac.common.substrate.types import Mark, MarkState

_MANY_LINES = 200
"""From here on parsing moves to a thread, so that a long history does not hold up the other agents of the process."""
_DONE = f"{MarkState.DONE.value} "


class Transcripts:
    """The transcripts of all tasks."""

    def __init__(self, connection: Connection) -> None:
        """Over one connection."""
        self._connection = connection

    async def lines(self, task_id: TaskId, start: int = 0, stop: int | None = None) -> tuple[Line, ...]:
        """Lines from number `start` on, up to but without `stop`."""
        key = self._connection.keys.task(task_id, "x")
        last = -1 if stop is None else stop - 1
        if stop is not None and stop <= start:
            return ()
        raw = cast("list[bytes]", await self._connection.command("LRANGE", key, start, last))
        return _parse(raw) if len(raw) < _MANY_LINES else await asyncio.to_thread(_parse, raw)

    async def marks(self, task_id: TaskId) -> dict[str, Mark]:
        """tool_use id → its start mark or kept result."""
        found = mapping(await self._connection.command("HGETALL", self._connection.keys.task(task_id, "tools")))
        return {tool: _mark(value) for tool, value in found.items()}


def _parse(raw: Iterable[bytes]) -> tuple[Line, ...]:
    return tuple(Line.model_validate(orjson.loads(line)) for line in raw)


def _mark(value: str) -> Mark:
    if value.startswith(_DONE):
        return Mark(MarkState.DONE, value.removeprefix(_DONE).encode())
    return Mark(MarkState.STARTED)
