"""The owner's own judgement of its lease (PROTOCOL 4, Local clock): it acts for 2/3 of the lease since its last renew
was *sent*, on CLOCK_BOOTTIME, and is told when that time is over, whatever the network does."""

import asyncio
from collections.abc import Callable

from celeriac.common.clock import boottime

LOOK_SECONDS = 1.0
"""Longest timer: the event loop's clock stands still while the machine sleeps, so the boot clock is read this often."""


class LocalClock:
    """A deadline that each successful renew moves."""

    def __init__(self, lease_ms: int, sent_at: float, over: Callable[[], None]) -> None:
        """Start counting at `sent_at` (CLOCK_BOOTTIME, seconds); `over` is called once, at the deadline."""
        self._over = over
        self._span = lease_ms / 1000 * 2 / 3
        self._deadline = sent_at + self._span
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def renewed(self, sent_at: float) -> None:
        """A renew that was sent then has succeeded."""
        self._deadline = max(self._deadline, sent_at + self._span)

    def remaining(self) -> float:
        """Seconds left to act; negative when over."""
        return self._deadline - boottime()

    def stop(self) -> None:
        """Nothing is owned any more: look no further."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        delay = min(max(self.remaining(), 0), LOOK_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(delay, self._check)

    def _check(self) -> None:
        if self.remaining() > 0:
            self._look()
            return
        self._timer = None
        self._over()
