"""Named points: awaited no-ops in the code that a test may hold, so that races happen in a chosen order.

with hold("finish.before", task_id) as held:
    ending = asyncio.create_task(lease.finish(outcome))
    await held.reached.wait()
    ...                                     # whatever must come first
    held.release()
"""

import asyncio
from types import TracebackType
from typing import Self


class Hold:
    """Holds the first arrival at one point; later arrivals pass. Leaving the `with` block releases it."""

    def __init__(self, name: str, subject: str | None, error: Exception | None) -> None:
        """`subject`: only arrivals of this task id; None: of any. `error`: raised in the held one on release."""
        self.name = name
        self.subject = subject
        self.error = error
        self.reached = asyncio.Event()
        self._go = asyncio.Event()

    def release(self) -> None:
        """Let the held one go on."""
        self._go.set()
        if self in _holds:
            _holds.remove(self)

    async def arrive(self) -> None:
        """Be held until released."""
        if self in _holds:
            _holds.remove(self)
        self.reached.set()
        await self._go.wait()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_holds: list[Hold] = []


def hold(name: str, subject: str | None = None) -> Hold:
    """Install a hold at `name`; see the module's example."""
    held = Hold(name, subject, None)
    _holds.append(held)
    return held


def fail(name: str, error: Exception, subject: str | None = None) -> Hold:
    """Have the first arrival at `name` raise `error` at once: at `append.after` the reply of a script gets lost."""
    held = Hold(name, subject, error)
    held.release()
    _holds.append(held)
    return held


async def point(name: str, subject: str = "") -> None:
    """A place where a test may hold the caller; does nothing otherwise."""
    for held in tuple(_holds):
        if held.name == name and held.subject in {None, subject}:
            await held.arrive()
            return
