"""Stopping a task with everything below it, and what became of each (PROTOCOL 4). Knows the substrate only."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.task import Record, State, Stop
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import StopAnswer

STOP_LOOK_MS = 200
"""How often a stop looks again for owners that died before they acted."""
STOP_GRACE_SECONDS = 5.0
"""Beyond one lease (after which anyone may settle a lost owner's task), before a stop is reported as not confirmed."""

STILL_RUNS = "its owner has not ended it in time"
UNSEEN = "its owner was lost, and its processes were not seen to end"

Tree = Callable[[TaskId], Awaitable[tuple[Record, ...]]]
"""The records of a task's session, the session's own first. Raises NotFound."""


class StopVerdict(StrEnum):
    """What became of one task when its tree was stopped (PROTOCOL 4)."""

    STOPPED = "stopped"
    FINISHED = "already finished"
    UNCONFIRMED = "not confirmed"
    """It still runs; or its owner was lost, so that nobody saw its processes end."""


@dataclass(frozen=True, slots=True)
class StopLine:
    """One line of the answer to a stop."""

    task_id: TaskId
    title: str
    verdict: StopVerdict
    why: str = ""
    """For what is not confirmed."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """One stop of one task: asked for under one op id, so that asking again changes nothing."""

    substrate: Substrate
    tree: Tree
    task_id: TaskId
    reason: str
    kind: Literal["user", "limit"]
    op: str

    async def run(self) -> tuple[StopLine, ...]:
        """Stop, and wait until nothing below runs. Bounded: what still runs then is not confirmed.

        After an outage owners act again, and leases count again, only when the server is back: so does the bound.
        """
        before = await self._subtree()
        asked = await self._ask()
        # What is opened or created from now on is not meant: nothing new comes below a run that is stopped.
        runs = {task.task_id: task.run for task in await self._subtree()} | {self.task_id: asked.run}
        bound = self.substrate.lease_ms / 1000 + STOP_GRACE_SECONDS
        while True:
            outages = self.substrate.outages
            try:
                async with asyncio.timeout(bound):
                    after = await self._until_terminal(runs)
                    break
            except TimeoutError:
                after = await self._meant(runs)
            if self.substrate.outages == outages:
                break
        return tuple(_stop_lines(before, after))

    async def _ask(self) -> StopAnswer:
        return await self.substrate.records.request_stop(self.task_id, kind=self.kind, reason=self.reason, op=self.op)

    async def _until_terminal(self, runs: Mapping[TaskId, int]) -> tuple[Record, ...]:
        """Ask, settle and look again until nothing below runs. Asking again is harmless (PROTOCOL 4)."""
        session = ids.session_of(self.task_id)
        cursor = await self.substrate.events.last_id(session)
        while True:
            await self._ask()
            for task in await self._subtree():
                if not task.state.terminal:
                    await self.substrate.records.settle_stop(task.task_id)
            tasks = await self._meant(runs)
            if all(task.state.terminal for task in tasks):
                return tasks
            cursor = await self._news(session, cursor)

    async def _news(self, session: TaskId, cursor: str) -> str:
        """Wait a moment for an event; the last one's id."""
        try:
            entries = await self.substrate.events.read(session, cursor, block_ms=STOP_LOOK_MS)
        except ServerUnreachable:  # what comes next waits for it
            return cursor
        return entries[-1][0] if entries else cursor

    async def _meant(self, runs: Mapping[TaskId, int]) -> tuple[Record, ...]:
        """The tasks as of these runs."""
        tasks = [task for task in await self._subtree() if task.task_id in runs]
        return tuple([await self._as_of(task, runs[task.task_id]) for task in tasks])

    async def _as_of(self, task: Record, run: int) -> Record:
        if task.run == run:
            return task
        outcome = await self.substrate.records.outcome(task.task_id, run)
        assert outcome is not None, "a run that another has followed has ended"
        stopped = outcome.state is not State.COMPLETED
        stop = Stop(kind=self.kind, reason=outcome.reason, at_ms=0) if stopped else None
        return task.model_copy(update={"run": run, "state": outcome.state, "outcome": outcome, "stop": stop})

    async def _subtree(self) -> tuple[Record, ...]:
        return tuple(_below(self.task_id, await self.tree(self.task_id)))


def _below(task_id: TaskId, tree: tuple[Record, ...]) -> Iterable[Record]:
    """The task and its descendants, in the order of the tree."""
    members = {task_id}
    for record in tree:
        if record.task_id in members or record.parent in members:
            members.add(record.task_id)
            yield record


def _stop_lines(before: tuple[Record, ...], after: tuple[Record, ...]) -> Iterable[StopLine]:
    ended = {(record.task_id, record.run) for record in before if record.state.terminal}
    for record in after:
        verdict, why = _verdict(record, was_ended=(record.task_id, record.run) in ended)
        yield StopLine(record.task_id, record.title, verdict, why)


def _verdict(record: Record, *, was_ended: bool) -> tuple[StopVerdict, str]:
    if not record.state.terminal:
        return StopVerdict.UNCONFIRMED, STILL_RUNS
    if was_ended or record.stop is None:
        return StopVerdict.FINISHED, ""
    return (StopVerdict.STOPPED, "") if record.stop.confirmed else (StopVerdict.UNCONFIRMED, UNSEEN)
