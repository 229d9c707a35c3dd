"""Keeping processes alive: one that ends is started again after a pause, and one that ends too often ends `up`."""

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NoReturn, Protocol
from urllib.parse import urlsplit

from celeriac.common.contract.errors import CeleriacError, ServerUnreachable
from celeriac.common.substrate.embedded import LOG_NAME, EmbeddedServer
from celeriac.ops.children import Child, DidNotStart, ending
from celeriac.ops.log_files import LogFile, last_line_of

READY_SECONDS = 60.0
"""How long one process may take to start: several start at once, and importing the model's SDK takes 3 s for each."""
END_SECONDS = 15.0
"""Between SIGTERM and SIGKILL: a process may take 10 s to hand over what it runs."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
"""Pauses before a new start double up to this."""
ENDS_ALLOWED = 5
WINDOW_SECONDS = 60.0
"""So many ends in this time are a crash loop: nothing that happens by chance comes so often."""


class CrashLoop(CeleriacError):
    """A process ends again and again."""


class Life(Protocol):
    """One start of something."""

    async def ended(self) -> int:
        """Wait for the end; the return code, negative for a signal."""
        ...


class Part(Protocol):
    """Something that is kept alive."""

    @property
    def name(self) -> str:
        """As people read it."""
        ...

    @property
    def log(self) -> Path:
        """Where they find what it said."""
        ...

    def run(self) -> AbstractAsyncContextManager[Life]:
        """Start it once: entered when it is ready, ended at the exit, bounded. Raises DidNotStart."""
        ...


class Keeper:
    """Keeps one part alive."""

    def __init__(self, part: Part, say: Callable[[str], None]) -> None:
        """`say` gets a line for each end and each return."""
        self.ready = asyncio.Event()
        """Set when the part has been ready once."""
        self._part = part
        self._say = say
        self._ends: deque[float] = deque(maxlen=ENDS_ALLOWED)

    async def keep(self) -> NoReturn:
        """Until cancelled. Raises DidNotStart if the first start fails, and CrashLoop."""
        while True:
            how = await self._live()
            pause = self._pause(how)
            self._say(f"{self._part.name} {how}; it is started again in {pause:g} s")
            await asyncio.sleep(pause)

    async def _live(self) -> str:
        """One life; how it ended, in words."""
        try:
            async with self._part.run() as life:
                if self.ready.is_set():
                    self._say(f"{self._part.name} is back")
                self.ready.set()
                return ending(await life.ended())
        except DidNotStart as error:
            if not self.ready.is_set():
                raise
            return f"did not start again ({error})"

    def _pause(self, how: str) -> float:
        """The time to wait after this end, in seconds. Raises CrashLoop."""
        now = asyncio.get_running_loop().time()
        while self._ends and now - self._ends[0] > WINDOW_SECONDS:
            self._ends.popleft()
        self._ends.append(now)
        if len(self._ends) == ENDS_ALLOWED:
            times = f"{ENDS_ALLOWED} times within {WINDOW_SECONDS:.0f} s"
            raise CrashLoop(f"{self._part.name} ended {times}, at last it {how}; its log is {self._part.log}")
        return min(FIRST_PAUSE_SECONDS * 2.0 ** (len(self._ends) - 1), LONGEST_PAUSE_SECONDS)


class ProcessPart:
    """A `celeriac ROLE` process."""

    def __init__(
        self, role: str, name: str, arguments: Sequence[str], *, folder: Path, environment: dict[str, str], logs: Path
    ) -> None:
        """It runs in `folder` and writes to NAME.log in `logs`."""
        self.name = name
        self.log = logs / f"{name}.log"
        self._role = role
        self._arguments = arguments
        self._folder = folder
        self._environment = environment
        self._lines = LogFile(self.log)
        self._child: Child | None = None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Life]:
        """One process, ready. Raises DidNotStart."""
        child = await Child.start(
            self._role, self._folder, self._environment, self._arguments, on_line=self._lines.write
        )
        self._child = child
        try:
            await self._wait_ready(child)
            yield child
        finally:
            await child.end(END_SECONDS)

    async def _wait_ready(self, child: Child) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await child.ready()
        except DidNotStart as error:
            raise did_not_start(self.name, child.last_line or f"it {ending(await child.ended())}", self.log) from error
        except TimeoutError as error:
            raise did_not_start(self.name, f"it was not ready after {READY_SECONDS:.0f} s", self.log) from error

    def kill(self) -> None:
        """SIGKILL it now, if it runs."""
        if self._child is not None and self._child.returncode is None:
            self._child.signal(signal.SIGKILL)


class ServerPart:
    """The embedded server, on one port from its first start on, so that everybody finds it again."""

    name = "server"

    def __init__(self, folder: Path, *, port: int | None, search_path: str) -> None:
        """Its data stays in `folder`. `port` None: one that is free at the first start."""
        self.log = folder / LOG_NAME
        self.url = ""
        """Known when it is ready."""
        self._folder = folder
        self._port = port
        self._search_path = search_path

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Life]:
        """One server, ready. Raises DidNotStart."""
        starting = EmbeddedServer.start(self._folder, port=self._port, search_path=self._search_path)
        async with AsyncExitStack() as stack:
            try:
                server = await stack.enter_async_context(starting)
            except ServerUnreachable as error:
                raise did_not_start(self.name, last_line_of(self.log) or str(error), self.log) from error
            self.url, self._port = server.url, urlsplit(server.url).port
            yield server


def did_not_start(name: str, last_words: str, log: Path) -> DidNotStart:
    """The error in one line, with what it said last."""
    said = last_words.removeprefix("celeriac: ").splitlines()[0]
    return DidNotStart(f"{name} did not start: {said}; its log is {log}")
