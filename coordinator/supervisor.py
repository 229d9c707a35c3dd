"""The supervisor (PROTOCOL 4): finds what nobody works on and has it woken. Any number may run; it holds no state."""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.substrate.lookout import Seen, sessions_of
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.sessions import Sessions

UNLIST_AFTER_SCANS = 10
"""Ended sessions are taken off the list every so many scans: cheap, and never urgent."""

log = logging.getLogger(__name__)


class Supervisor:
    """Scans every `scan_seconds` (at most 2 s, DESIGN 3)."""

    def __init__(self, dispatcher: Dispatcher, sessions: Sessions, *, scan_seconds: float, lease_ms: int) -> None:
        """`lease_ms`: how long a server that was away must have answered before a lease is called expired."""
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._scan_seconds = scan_seconds
        self._lease_ms = lease_ms

    async def run(self) -> None:
        """Scan until cancelled. After a restart of the server, or a time without an answer, whether or not a scan saw
        it, older sessions are left alone for one lease time."""
        substrate, scans = self._dispatcher.substrate, 0
        while True:
            try:
                listed = await substrate.sessions.listed()
                trusted = await substrate.lookout.trusted(listed, self._lease_ms)
                listed = {session: version for session, version in listed.items() if session in trusted}
                await self.scan(listed, unlist=scans % UNLIST_AFTER_SCANS == 0)
                scans += 1
            except ServerUnreachable as error:
                log.warning("scan: %s", error)
            except Exception:  # a border: a scan that fails must not end the process and every session in it
                log.exception("scan")
            await asyncio.sleep(self._scan_seconds)

    async def scan(self, listed: Mapping[TaskId, int], *, unlist: bool = False) -> None:
        """Look once at these sessions (with their list versions), those listed first first. Raises ServerUnreachable;
        any other failure is that of one session or task, and the others are looked at all the same."""
        seen = await self._dispatcher.substrate.lookout.look(sorted(listed, key=lambda session: listed[session]))
        for task in seen:
            await _apart(self._deal_with(task), task.task_id)
        if unlist:
            await self._unlist(listed, sessions_of(seen))

    async def _unlist(self, listed: Mapping[TaskId, int], open_ones: Collection[TaskId]) -> None:
        """Take ended sessions off the list, and those whose client died before they had a record (PROTOCOL 7)."""
        for session, version in listed.items():
            if session not in open_ones:
                await _apart(self._unlist_one(session, version), session)

    async def _unlist_one(self, session: TaskId, version: int) -> None:
        sessions = self._dispatcher.substrate.sessions
        if not await sessions.seal_and_unlist(session, version):
            await sessions.drop(session)

    async def _deal_with(self, task: Seen) -> None:
        """Stop what is over its time, settle a stop that nobody else will, have the task woken if its time has come."""
        records, task_id = self._dispatcher.substrate.records, task.task_id
        if task.overdue:
            op = f"deadline:{task_id}:{task.run}"
            await records.request_stop(task_id, kind="limit", reason="the time limit is over", op=op, run=task.run)
        if task.stopped and await records.settle_stop(task_id):
            return
        due = await records.resend(task_id) if task.due else None  # which also tells of a lost owner
        if task.ready and ids.session_of(task_id) == task_id and self._sessions.room:
            self._sessions.claim(task_id)
        elif due is not None:
            await self._dispatcher.wake(task_id, run=due.run, attempt=due.attempt)


async def _apart(step: Awaitable[None], task_id: TaskId) -> None:
    """A border around one task: what is wrong with it stays with it."""
    try:
        await step
    except ServerUnreachable:
        raise
    except Exception:
        log.exception("%s: the supervisor cannot deal with it", task_id)
