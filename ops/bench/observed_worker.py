"""A worker process that also notes how late its event loop is: `FILE`; all else from the environment, as a worker does.

The file gets a line for each look: the time (CLOCK_MONOTONIC, seconds) and the lag (milliseconds).
"""

import asyncio
import sys
from pathlib import Path

from anyio.from_thread import BlockingPortal

from celeriac.common.settings import Settings
from celeriac.ops.processes import process_settings
from celeriac.workers.main import WorkerProcess, run

LOOK_SECONDS = 0.01
"""Between two looks: a lag that is shorter harms nobody."""


async def watch(file: Path) -> None:
    """Note the lag until cancelled: how much later than asked a sleep ends."""
    loop = asyncio.get_running_loop()
    with file.open("w", buffering=1) as notes:
        while True:
            due = loop.time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            notes.write(f"{loop.time():.4f} {(loop.time() - due) * 1000:.3f}\n")


class ObservedWorker(WorkerProcess):
    """A worker with a watch on its loop."""

    def __init__(self, settings: Settings, portal: BlockingPortal, file: Path) -> None:
        """`file` for the notes."""
        super().__init__(settings, portal, "worker")
        self._file = file

    async def open(self) -> None:
        """Open, and begin to watch."""
        await super().open()
        self._watch = asyncio.create_task(watch(self._file), name="watch")

    async def close(self) -> None:
        """End both."""
        self._watch.cancel()
        await super().close()


def main() -> None:
    """Run until SIGTERM."""
    settings = process_settings({})
    run(settings, lambda portal: ObservedWorker(settings, portal, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
