"""The supervisor (PROTOCOL 4): finds what nobody works on and has it woken. Any number may run; it holds no state."""

import asyncio
import logging
from collections.abc import Awaitable

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.sessions import Sessions

UNLIST_AFTER_SCANS = 10
"""Ended sessions are taken off the list every so many scans: cheap, and never urgent."""

log = logging.getLogger(__name__)


class Supervisor:
    """Scans every `scan_seconds` (at most 2 s, DESIGN 3)."""

    def __init__(self, dispatcher: Dispatcher, sessions: Sessions, *, scan_seconds: float, lease_ms: int) -> None:
        """`lease_ms`: how long it waits after the server was away before it calls a lease expired."""
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._scan_seconds = scan_seconds
        self._lease_ms = lease_ms
        self._away = False

    async def run(self) -> None:
        """Scan until cancelled; a server that is away is looked for again, then given one lease time."""
        scans = 0
        while True:
            try:
                if self._away:
                    await self._dispatcher.substrate.ping()
                    await asyncio.sleep(self._lease_ms / 1000)
                    self._away = False
                await self.scan(unlist=scans % UNLIST_AFTER_SCANS == 0)
                scans += 1
            except ServerUnreachable as error:
                log.warning("scan: %s", error)
                self._away = True
            except Exception:  # a border: a scan that fails must not end the process and every session in it
                log.exception("scan")
            await asyncio.sleep(self._scan_seconds)

    async def scan(self, *, unlist: bool = False) -> None:
        """Look once at every listed session. Raises ServerUnreachable; any other failure is that of one session or
        task, and the others are looked at all the same."""
        substrate = self._dispatcher.substrate
        for session, version in (await substrate.sessions.listed()).items():
            open_tasks = await substrate.records.open_tasks(session)
            await _apart(self._stop_overdue(session), session)
            for task_id in open_tasks:
                await _apart(self._look(task_id), task_id)
            if unlist and not open_tasks:
                await _apart(self._unlist(session, version), session)

    async def _unlist(self, session: TaskId, version: int) -> None:
        """Take an ended session off the list, or one whose client died before it had a record (PROTOCOL 7)."""
        sessions = self._dispatcher.substrate.sessions
        if not await sessions.seal_and_unlist(session, version):
            await sessions.drop(session)

    async def _stop_overdue(self, session: TaskId) -> None:
        records = self._dispatcher.substrate.records
        for ref in await records.overdue(session):
            reason = "the time limit is over"
            op = f"deadline:{ref.task_id}:{ref.run}"
            await records.request_stop(ref.task_id, kind="limit", reason=reason, op=op, run=ref.run)

    async def _look(self, task_id: TaskId) -> None:
        """Settle a stop that nobody else will, or wake the task if its time has come."""
        records = self._dispatcher.substrate.records
        if await records.settle_stop(task_id):
            return
        due = await records.resend(task_id)
        if due is None:
            return
        if ids.session_of(task_id) == task_id:
            await self._sessions.claim(task_id)
        await self._dispatcher.wake(task_id, run=due.run, attempt=due.attempt)


async def _apart(step: Awaitable[None], task_id: TaskId) -> None:
    """A border around one task: what is wrong with it stays with it."""
    try:
        await step
    except ServerUnreachable:
        raise
    except Exception:
        log.exception("%s: the supervisor cannot deal with it", task_id)
