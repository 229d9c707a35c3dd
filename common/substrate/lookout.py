"""What a supervisor sees at one look: the open tasks of all listed sessions, in a few round trips and without a script.

A sieve and no more: what it lets through is decided by the scripts, on what is true by then. It never holds back what
a script would act on. Above: the supervisor. Below: the connection.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from celeriac.common.contract.ids import TaskId, session_of
from celeriac.common.substrate.connection import Command, Connection, number, text, texts

FIRST_WAIT_MS = 2000
LONGEST_WAIT_MS = 30_000
"""As in resend.lua; a test compares them."""
_PIPELINED = 150
"""Commands in one round trip: about 10 ms of parsing, during which nothing else of the process runs."""
_TEXTS = ("owner", "park", "chain")
_NUMBERS = ("run", "lease_until", "park_at", "stop_upto", "deadline", "wake_at", "wake_n")


@dataclass(frozen=True, slots=True)
class Seen:
    """One open task, and what there may be to do for it."""

    task_id: TaskId
    run: int
    overdue: bool
    """Its deadline has passed."""
    stopped: bool
    """It is free (nobody owns it, or the lease has run out), and may be stopped by itself or by a run above it."""
    ready: bool
    """It is free, and not parked or its park has fallen due."""
    due: bool
    """It is ready, and the wake-up that was sent last is so old that another may be needed."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The fields of a record that are looked at."""

    words: Mapping[str, str]
    counts: Mapping[str, int]

    @classmethod
    def of(cls, values: Sequence[object]) -> "_Row":
        words = dict(zip(_TEXTS, map(text, values), strict=False))
        return cls(words, dict(zip(_NUMBERS, map(number, values[len(_TEXTS) :]), strict=True)))

    def free(self, now: int) -> bool:
        return not self.words["owner"] or self.counts["lease_until"] <= now

    def parked(self, now: int) -> bool:
        return bool(self.words["park"]) and not 0 < self.counts["park_at"] <= now

    def waited(self, now: int) -> bool:
        since, ends = self.counts["wake_at"], "lease_until" if self.words["owner"] else "park_at"
        longest = min(FIRST_WAIT_MS * 2 ** min(self.counts["wake_n"], 10), LONGEST_WAIT_MS)
        return now - since > longest or since < self.counts[ends]

    def stopped(self, others: Mapping[TaskId, "_Row"]) -> bool:
        """An ancestor that is not among the open ones has ended, perhaps with its children: the script knows."""
        if self.counts["stop_upto"] >= self.counts["run"]:
            return True
        links = orjson.loads(self.words["chain"] or "[]")
        return any(above not in others or others[above].counts["stop_upto"] >= run for above, run in links)


class Lookout:
    """Looks at sessions; changes nothing."""

    def __init__(self, connection: Connection) -> None:
        """Over one connection."""
        self._connection = connection

    async def look(self, sessions: Collection[TaskId]) -> tuple[Seen, ...]:
        """The open tasks of these sessions, in their order. Raises ServerUnreachable."""
        keys = self._connection.keys
        now = await self._now()  # before anything is read: a lease that is renewed meanwhile is not called expired
        sets = await self._spread([("SMEMBERS", keys.session(session, "open")) for session in sessions])
        tasks = [TaskId(task) for found in sets for task in texts(found)]
        fields = (*_TEXTS, *_NUMBERS)
        values = await self._spread([("HMGET", keys.task(task, "t"), *fields) for task in tasks])
        rows = {task: _Row.of(texts(value)) for task, value in zip(tasks, values, strict=True)}
        return tuple(_seen(task, row, rows, now) for task, row in rows.items())

    async def trusted(self, listed: Collection[TaskId], lease_ms: int) -> frozenset[TaskId]:
        """Those of these sessions whose expired leases are no fault of the server's (PROTOCOL 4, 9): it has answered
        for a whole lease without a restart, or they were created since. Raises ServerUnreachable."""
        quiet_ms = min(await self._uptime_ms(), self._connection.answering_ms())
        if quiet_ms >= lease_ms:
            return frozenset(listed)
        since = await self._now() - quiet_ms
        born = texts(await self._connection.command("ZRANGEBYSCORE", self._connection.keys.by_time, since, "+inf"))
        return frozenset(listed) & {TaskId(f"s-{key}") for key in born}

    async def _uptime_ms(self) -> float:
        """How long the server has been running; rounded down, so that nothing older counts as younger than it."""
        told = cast("Mapping[str, object]", await self._connection.command("INFO", "server"))
        return number(told["uptime_in_seconds"]) * 1000.0

    async def _now(self) -> int:
        seconds, micros = texts(await self._connection.command("TIME"))
        return int(seconds) * 1000 + int(micros) // 1000

    async def _spread(self, commands: Sequence[Command]) -> list[object]:
        replies: list[object] = []
        for first in range(0, len(commands), _PIPELINED):
            replies += await self._connection.spread(commands[first : first + _PIPELINED])
        return replies


def _seen(task_id: TaskId, row: _Row, others: Mapping[TaskId, _Row], now: int) -> Seen:
    free = row.free(now)
    ready = free and not row.parked(now)
    return Seen(
        task_id=task_id,
        run=row.counts["run"],
        overdue=0 < row.counts["deadline"] <= now,
        stopped=free and row.stopped(others),
        ready=ready,
        due=ready and row.waited(now),
    )


def sessions_of(seen: Collection[Seen]) -> frozenset[TaskId]:
    """The sessions that have an open task."""
    return frozenset(session_of(task.task_id) for task in seen)
