"""A whole cluster for one job: a private server, a coordinator and a worker as child processes, gone when it ends.

The children run in a folder of ours, never in the user's, so that no `celery.py` of a workspace is imported.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sysconfig
from collections import deque
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from celeriac.common.contract.errors import CeleriacError, UsageError
from celeriac.common.settings import Settings
from celeriac.common.substrate.embedded import EmbeddedServer

READY_SECONDS = 30.0
"""How long server, coordinator and worker may take to start; importing the model's SDK takes 3 s on a slow machine."""
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL of a child; nothing of the job runs any more by then."""
LINES_KEPT = 20
"""Log lines of a child that are shown if it does not start."""


class DidNotStart(CeleriacError):
    """A process of the local cluster ended or stayed silent."""

    exit_code = 4


class Child:
    """One `celeriac` process that says `… ready: NAME` on stderr."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        """`process` has its stderr piped."""
        self.role = role
        self._process = process
        self._ready = asyncio.Event()
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._reader = asyncio.create_task(self._read(), name=f"read {role}")

    @classmethod
    async def start(cls, role: str, folder: Path, environment: dict[str, str]) -> "Child":
        """Start `celeriac ROLE` in `folder`, tied to this process's life."""
        script = Path(sysconfig.get_path("scripts")) / "celeriac"
        process = await asyncio.create_subprocess_exec(
            str(script),
            role,
            "--parent-pid",
            str(os.getpid()),
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at the terminal is ours to handle
        )
        return cls(role, process)

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while line := await _line_of(self._process.stderr):
            self._lines.append(line)
            if f"{self.role} ready" in line:
                self._ready.set()

    async def ready(self) -> None:
        """Wait for the ready line. Raises DidNotStart with the last log lines if the process ends first."""
        waiter = asyncio.create_task(self._ready.wait(), name=f"{self.role} ready")
        try:
            await asyncio.wait({waiter, self._reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if not self._ready.is_set():
            raise self.failure("ended before it was ready")

    def failure(self, what: str) -> DidNotStart:
        """The error, with the log."""
        log = "\n".join(f"  {line}" for line in self._lines)
        return DidNotStart(f"the {self.role} {what}; its last lines:\n{log}" if log else f"the {self.role} {what}")

    def signal(self, number: signal.Signals) -> None:
        """Send to the child's process group; one that is gone is fine."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.returncode

    async def end(self, grace: float = GRACE_SECONDS) -> None:
        """SIGTERM, at most `grace` seconds, SIGKILL."""
        if self._process.returncode is None:
            self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._process.wait()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


async def _line_of(stream: asyncio.StreamReader) -> str:
    """The next line that is not empty, '' at the end; one that is too long counts as a line of its own."""
    while True:
        try:
            raw = await stream.readline()
        except ValueError:
            return "(a line that is too long)"
        if not raw:
            return ""
        if line := raw.decode(errors="replace").rstrip():
            return line


class LocalCluster:
    """Server, coordinator and worker for the life of one block."""

    def __init__(self, settings: Settings, environ: dict[str, str]) -> None:
        """`environ`: what the children inherit; it is where they find the model's key."""
        self._settings = settings
        self._environ = environ
        self._children: list[Child] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start(self) -> Settings:
        """Start all three and wait until they are ready; settings with the URL of the server. Raises DidNotStart."""
        folder = self.new_folder()
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = await self._stack.enter_async_context(
            EmbeddedServer.start(folder / "server", search_path=self._environ.get("PATH", os.defpath))
        )
        environment = self.child_environment(folder, server.url)
        self._stack.push_async_callback(self._end_children)
        for role in ("coordinator", "worker"):
            self._children.append(await Child.start(role, folder, environment))
        await self._all_ready()
        return self._settings.model_copy(update={"redis": self._settings.redis.model_copy(update={"url": server.url})})

    def kill(self) -> None:
        """SIGKILL the children now; leaving the block then cleans up without waiting for them."""
        for child in self._children:
            child.signal(signal.SIGKILL)

    async def _all_ready(self) -> None:
        waiting = [asyncio.create_task(child.ready(), name=f"{child.role} starts") for child in self._children]
        try:
            async with asyncio.timeout(READY_SECONDS):
                await asyncio.gather(*waiting)
        except TimeoutError:
            late = next(child for child, task in zip(self._children, waiting, strict=True) if not _went_well(task))
            raise late.failure(f"was not ready within {READY_SECONDS:.0f} s") from None
        finally:
            for task in waiting:
                task.cancel()

    async def _end_children(self) -> None:
        await asyncio.gather(*(child.end() for child in self._children))

    def new_folder(self) -> Path:
        """`run/PID-RANDOM` in the home; folders that a killed `run` left are removed."""
        parent = self._settings.home / "run"
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(parent)
            folder = parent / f"{os.getpid()}-{secrets.token_hex(4)}"
            (folder / "server").mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise UsageError(f"{parent} cannot be written ({error.strerror}); set CELERIAC_HOME") from error
        return folder

    def child_environment(self, folder: Path, url: str) -> dict[str, str]:
        """What this process has, with our settings in a file, and no way to import from a relative folder."""
        file = folder / "settings.json"
        file.write_text(self._settings.document(), encoding="utf-8")
        paths = [path for path in self._environ.get("PYTHONPATH", "").split(os.pathsep) if Path(path).is_absolute()]
        return {
            **self._environ,
            "CELERIAC_HOME": str(self._settings.home),
            "CELERIAC_SETTINGS": str(file),
            "CELERIAC_REDIS_URL": url,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
        }


def _went_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _sweep(parent: Path) -> None:
    for folder in parent.iterdir():
        pid = folder.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
