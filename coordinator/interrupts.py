"""Ctrl-C and SIGTERM as something to wait for, so that a command decides what the first and the second mean."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the signals that arrive while the block runs; nothing is raised by them."""

    def __init__(self) -> None:
        """Nothing has arrived."""
        self.count = 0
        self._arrived = asyncio.Condition()
        self._pending: set[asyncio.Task[None]] = set()
        self._heard: tuple[signal.Signals, ...] = ()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._heard = tuple(number for number in _SIGNALS if number not in _ignored())
        for number in self._heard:
            loop.add_signal_handler(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in self._heard:
            loop.remove_signal_handler(number)

    def _note(self) -> None:
        self.count += 1
        task = asyncio.ensure_future(self._tell())
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _tell(self) -> None:
        async with self._arrived:
            self._arrived.notify_all()

    async def reached(self, count: int) -> None:
        """Wait until so many have arrived."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.count >= count)

    async def attend(
        self, work: Coroutine[object, object, T], *, until: int = 1, at_signal: Callable[[], None] = lambda: None
    ) -> T | None:
        """Do the work unless `until` signals arrive first: then `at_signal`, the work is cancelled, None comes back."""
        task = asyncio.create_task(work, name="attended work")
        waiter = asyncio.create_task(self.reached(until), name="wait for a signal")
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            at_signal()
            return None
        finally:
            for one in (task, waiter):
                one.cancel()
            await asyncio.gather(task, waiter, return_exceptions=True)


def _ignored() -> set[signal.Signals]:
    """A hang-up that is ignored when we start stays so: that is what `nohup` means."""
    return {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
