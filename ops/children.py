"""Child processes of `run` and `up`: started, waited for, ended; each tied to this process's life."""

import asyncio
import os
import signal
import sysconfig
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from celeriac.common.contract.errors import CeleriacError

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL of a child, unless its owner knows better."""
LINES_KEPT = 20
"""Log lines of a child that are shown if it does not start."""


class DidNotStart(CeleriacError):
    """A process that we started ended or stayed silent."""

    exit_code = 4


def _drop(_line: str) -> None:
    """For children whose log nobody keeps."""


class Child:
    """One `celeriac` process that says `… ready: NAME` on stderr."""

    def __init__(self, role: str, process: asyncio.subprocess.Process, on_line: Callable[[str], None] = _drop) -> None:
        """`process` has its stderr piped; `on_line` gets each of its lines."""
        self.role = role
        self.ready_line = ""
        """What it said when it was ready."""
        self._process = process
        self._on_line = on_line
        self._ready = asyncio.Event()
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._reader = asyncio.create_task(self._read(), name=f"read {role}")

    @classmethod
    async def start(
        cls,
        role: str,
        folder: Path,
        environment: dict[str, str],
        arguments: Sequence[str] = (),
        on_line: Callable[[str], None] = _drop,
    ) -> "Child":
        """Start `celeriac ROLE ARGUMENTS` in `folder`, tied to this process's life."""
        script = Path(sysconfig.get_path("scripts")) / "celeriac"
        process = await asyncio.create_subprocess_exec(
            *(str(script), role, "--parent-pid", str(os.getpid()), *arguments),
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at the terminal is ours to handle
        )
        return cls(role, process, on_line)

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while line := await _line_of(self._process.stderr):
            self._lines.append(line)
            self._on_line(line)
            if f"{self.role} ready" in line:
                self.ready_line = line
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

    @property
    def last_line(self) -> str:
        """The last that it said; empty if nothing."""
        return self._lines[-1] if self._lines else ""

    def signal(self, number: signal.Signals) -> None:
        """Send to the child's process group; one that is gone is fine."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.returncode

    async def ended(self) -> int:
        """Wait until it has ended, for whatever reason; the return code."""
        return await self._process.wait()

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


def ending(code: int) -> str:
    """What a return code says: `was killed by SIGKILL`, `exited with code 1`."""
    if code >= 0:
        return f"exited with code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


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
