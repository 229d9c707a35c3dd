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

    def __init__(self, session: Session, group: asyncio.TaskGroup) -> None:
        """`group` owns the running sessions."""
        self._session = session
        self._group = group
        self._claiming: set[TaskId] = set()

    @property
    def holdings(self) -> Holdings:
        """What this process owns."""
        return self._session.runner.holdings

    async def claim(self, session_id: TaskId) -> bool:
        """Try to become the owner; True if this process runs it now. Safe to call at any time, by any number of
        processes."""
        runner = self._session.runner
        if session_id in runner.holdings or session_id in self._claiming or runner.holdings.closing:
            return False
        self._claiming.add(session_id)
        # A task of its own: a claim that is cut off here may have been granted there, and then nobody would run it.
        return await asyncio.shield(self._group.create_task(self._claim(session_id), name=f"claim of {session_id}"))

    async def _claim(self, session_id: TaskId) -> bool:
        runner = self._session.runner
        try:
            lease = await runner.substrate.claim(session_id, None, process=runner.process)
        except Exception:  # a border: the group ends with its first failure, and with it every session
            log.exception("%s not claimed", session_id)
            return False
        finally:
            self._claiming.discard(session_id)
        if isinstance(lease, ClaimRefusal):
            log.debug("%s not claimed: %s", session_id, lease)
            return False
        self._group.create_task(self._run(lease), name=f"session {session_id}")
        return True

    async def _run(self, lease: Lease) -> None:
        try:
            await self._session.run(lease)
        except Exception:  # a border: one broken session must not take the others down; its lease runs out
            log.exception("%s: session ended by a defect", lease.task_id)
