"""What one process owns right now, and the one blocked reader that pokes it (PROTOCOL 1, hints)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from celeriac.common.contract.ids import TaskId
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.substrate.leases import Lease


class Holdings:
    """The leases of this process, by task."""

    def __init__(self) -> None:
        """Empty."""
        self._held: dict[TaskId, Lease] = {}
        self._graces: dict[TaskId, float] = {}
        self.closing = False

    @contextmanager
    def hold(self, lease: Lease) -> Iterator[None]:
        """Register a lease for as long as its run lasts; holding it again inside changes nothing."""
        before = self._held.get(lease.task_id)
        self._held[lease.task_id] = lease
        if self.closing:
            _close(lease)
        try:
            yield
        finally:
            if before is not lease and self._held.get(lease.task_id) is lease:
                del self._held[lease.task_id]

    @contextmanager
    def grace(self, lease: Lease, seconds: float) -> Iterator[None]:
        """What runs inside cannot go on elsewhere: a closing process gives it so long to end by itself."""
        self._graces[lease.task_id] = seconds
        try:
            yield
        finally:
            del self._graces[lease.task_id]

    def __contains__(self, task_id: TaskId) -> bool:
        """Whether this process owns the task."""
        return task_id in self._held

    def __len__(self) -> int:
        """How many tasks this process owns."""
        return len(self._held)

    def poke(self, task_id: TaskId) -> bool:
        """Have the owner look at its record now; False if the task is not owned here."""
        lease = self._held.get(task_id)
        if lease is None:
            return False
        lease.poke()
        return True

    def shut_down(self) -> None:
        """Hand over everything: each run is drained, stored and queued again for another process. Asked a second time,
        there is no grace."""
        graces = {} if self.closing else self._graces
        self.closing = True
        loop = asyncio.get_running_loop()
        for lease in tuple(self._held.values()):
            if seconds := graces.get(lease.task_id):
                loop.call_later(seconds, _close, lease)
            else:
                _close(lease)


def _close(lease: Lease) -> None:
    lease.node.abort(AbortReason.SHUTDOWN)
    lease.poke()  # whoever waits for news of the lease looks up at the next renewal: have it now
