"""Hints: "look at this task now". Any of them may be lost, late or doubled without harm (PROTOCOL)."""

import logging
from typing import cast

from celeriac.common.contract.errors import BadId
from celeriac.common.contract.ids import TaskId, kind_of, parse
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.substrate.connection import Command, Connection
from celeriac.common.substrate.types import Wake

log = logging.getLogger(__name__)

HINTS_KEPT = 10_000
"""A list of hints that nobody reads grows no longer than this."""
HINTS_KEPT_SECONDS = 3600
"""Hints of a process that is gone vanish after this."""


class Hints:
    """The lists `h:PROC` and `h:{sessions}`."""

    def __init__(self, connection: Connection) -> None:
        """Over one connection."""
        self._connection = connection

    async def push(self, process: str, task_id: TaskId) -> None:
        """Tell the process that works on `task_id` to look at it."""
        await self._push(self._connection.keys.hints(process), task_id)

    async def push_sessions(self, task_id: TaskId) -> None:
        """Tell any coordinator that this session waits for an owner."""
        await self._push(self._connection.keys.session_hints, task_id)

    async def wait(self, process: str, *, sessions: bool, timeout_s: float) -> TaskId | None:
        """Wait for one hint for this process, and with `sessions` also for one about a session without owner.

        Returns None when the time is over. Raises ServerUnreachable at once, without patience of its own."""
        keys = self._connection.keys
        lists = [keys.hints(process), *([keys.session_hints] if sessions else [])]
        reply = await self._connection.blocked("BLPOP", *lists, timeout_s, seconds=timeout_s)
        return None if reply is None else _hinted(cast("tuple[object, object]", reply)[1])

    async def after(self, target: JsonObject | None) -> None:
        """Send the hint that a script's answer asks for: to the owner, or about a session that has none."""
        if target is None:
            return
        task_id, process = TaskId(str(target["task"])), str(target["proc"])
        if process:
            await self.push(process, task_id)
        elif target["woken"] and kind_of(task_id) is Kind.SESSION:
            await self.push_sessions(task_id)

    async def _push(self, key: str, task_id: TaskId) -> None:
        commands: list[Command] = [
            ("RPUSH", key, task_id),
            ("LTRIM", key, -HINTS_KEPT, -1),
            ("EXPIRE", key, HINTS_KEPT_SECONDS),
        ]
        await self._connection.spread(commands)


def _hinted(reply: object) -> TaskId | None:
    """The task that a hint names; rubbish in the list is no hint."""
    word = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
    try:
        return parse(word)
    except BadId:
        log.warning("a hint that names no task was dropped: %.80r", word)
        return None


def wake_of(target: JsonObject | None) -> Wake | None:
    """The wake-up that the caller shall send through the queue; sessions have none."""
    if target is None or not target["woken"] or kind_of(TaskId(str(target["task"]))) is Kind.SESSION:
        return None
    return Wake(TaskId(str(target["task"])), int(cast("int", target["run"])), int(cast("int", target["attempt"])))
