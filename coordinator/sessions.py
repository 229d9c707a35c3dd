"""The sessions of one coordinator process: claimed by lease, many at once, any number of processes (DESIGN 3)."""

import asyncio
import logging

from celeriac.common.contract.ids import TaskId
from celeriac.common.runtime.holdings import Holdings
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import ClaimRefusal
from celeriac.coordinator.session import Session

log = logging.getLogger(__name__)


class Sessions:
    """Claims sessions and runs each in a task of its own."""

    def __init__(self, session: Session, group: asyncio.TaskGroup, *, most: int) -> None:
        """`group` owns the running sessions; there are at most `most` at once."""
        self._session = session
        self._group = group
        self._most = most
        self._mine: set[TaskId] = set()
        """Claimed, or being claimed, until the run has ended here."""

    @property
    def holdings(self) -> Holdings:
        """What this process owns."""
        return self._session.runner.holdings

    @property
    def room(self) -> bool:
        """Whether this process takes one more session: others may be idle while this one is full or closing."""
        return not self.holdings.closing and len(self._mine) < self._most

    def claim(self, session_id: TaskId) -> None:
        """Try to become the owner, and then run it; does not wait. Safe to call at any time, by any number of
        processes; without room it does nothing."""
        if session_id not in self._mine and self.room:
            self._mine.add(session_id)
            # A task of its own: a claim that is cut off here may have been granted there, and nobody would run it.
            self._group.create_task(self._claimed(session_id), name=f"session {session_id}")

    async def _claimed(self, session_id: TaskId) -> None:
        runner = self._session.runner
        try:
            lease = await runner.substrate.claim(session_id, None, process=runner.process)
            if isinstance(lease, ClaimRefusal):
                log.debug("%s not claimed: %s", session_id, lease)
            else:
                await self._run(lease)
        except Exception:  # a border: the group ends with its first failure, and with it every session
            log.exception("%s not claimed", session_id)
        finally:
            self._mine.discard(session_id)

    async def _run(self, lease: Lease) -> None:
        try:
            await self._session.run(lease)
        except Exception:  # a border: one broken session must not take the others down; its lease runs out
            log.exception("%s: session ended by a defect", lease.task_id)
