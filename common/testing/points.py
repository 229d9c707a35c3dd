"""Named points: awaited no-ops in the code that a test may hold, so that races happen in a chosen order.

with hold("finish.before", task_id) as held:
    ending = asyncio.create_task(lease.finish(outcome))
    await held.reached.wait()
    ...                                     # whatever must come first
    held.release()

In another process a point is held by a file: see `install`, and `testing.remote` for the test's side.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

HELD_SECONDS = 120.0
"""A hold by file that its test forgot ends by itself: longer than any test waits, shorter than its time-out."""
LOOK_SECONDS = 0.02
HOLD, REACHED, EVERY = "hold", "reached", "every"
"""How the file's name ends before and after the arrival that it holds; of one that holds every arrival."""


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
_folders: list[Path] = []


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


def install(folder: Path) -> None:
    """Have this process held by files of another: whoever arrives at NAME with SUBJECT takes `NAME@SUBJECT.hold` or
    `NAME.hold` out of `folder` by renaming it to `….PID.reached`, and goes on when that file is gone; `….every` holds
    all who arrive until it is gone itself."""
    _folders.append(folder)


async def point(name: str, subject: str = "") -> None:
    """A place where a test may hold the caller; does nothing otherwise."""
    for held in tuple(_holds):
        if held.name == name and held.subject in {None, subject}:
            await held.arrive()
            return
    for folder in _folders:
        await _held_by_file(folder, name, subject)


async def _held_by_file(folder: Path, name: str, subject: str) -> None:
    taken = _take(folder, f"{name}@{subject}") or _take(folder, name)
    if taken is None:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(HELD_SECONDS):
            while taken.exists():  # noqa: ASYNC110 - another process removes it
                await asyncio.sleep(LOOK_SECONDS)


def _take(folder: Path, stem: str) -> Path | None:
    """The file that holds this arrival; of several that arrive at a hold for one, one gets it."""
    taken, every = folder / f"{stem}.{os.getpid()}.{REACHED}", folder / f"{stem}.{EVERY}"
    if every.exists():
        taken.touch()
        return every
    try:
        (folder / f"{stem}.{HOLD}").rename(taken)
    except FileNotFoundError:
        return None
    return taken
