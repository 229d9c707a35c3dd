"""One command from the worker's side: its output, its stdin, its end. The supervisor's other half."""

import asyncio
import base64
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from celeriac.common.contract.task import Value
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.tools.base import Emit
from celeriac.workers.shell.output import Output

COALESCE_SECONDS = 0.05
COALESCE_BYTES = 32_768
"""Live output goes out in pieces of this time or size (SECURITY, PTY tasks)."""
ENDING_SECONDS = 8.0
"""How long a supervisor may take to end after it was told to: its grace, its 5 s of killing, its flush."""
STRAY_SECONDS = 1.0
"""How long output may stay open after the supervisor has gone: only if it was killed, with what it watched."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """How much of a command's output is kept, in UTF-8 bytes."""

    head_bytes: int = 20_000
    tail_bytes: int = 8_000
    """Head and tail of the final text: with marks below the 30,000 of a tool result and a notification (SPEC 3)."""
    live_bytes: int = 1 << 20
    """Bytes that go on the live stream; the rest is only counted."""


class Ending(Value):
    """The supervisor's report."""

    exit: int | None = None
    signal: str | None = None
    """Name without SIG."""
    cause: str = ""
    """Why it was killed: kill, timeout, silence, orphan; `leftover`: only what it left in the background was."""
    left: tuple[int, ...] = ()
    """Processes that could not be killed."""


_ENDING = TypeAdapter(Ending)
Cause = Literal["", "timeout", "killed", "lost"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command."""

    exit_code: int | None
    signal: str | None
    """Name of the signal that ended it, without SIG."""
    text: str
    """Bounded, terminal codes removed, valid UTF-8."""
    total_bytes: int
    """Everything that it wrote."""
    truncated: bool
    cause: Cause = ""
    """Empty: it ended by itself; `killed`: on request, or the lease was silent; `lost`: its supervisor vanished."""
    duration_s: float = 0.0

    @property
    def timed_out(self) -> bool:
        """Whether its time limit ended it."""
        return self.cause == "timeout"


class Running:
    """A started command. `wait` must be awaited once; everything else is optional."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        *,
        emit: Emit,
        cancel: AbortNode,
        limits: OutputLimits,
        on_end: "Callable[[Running], None]",
    ) -> None:
        """Made by `Commands.start` only."""
        self._process, self._emit, self._cancel, self._limits, self._on_end = process, emit, cancel, limits, on_end
        self._output = Output(limits.head_bytes, limits.tail_bytes)
        self._live_room = limits.live_bytes
        self._began = time.monotonic()
        self._over = asyncio.Event()
        self._early: list[dict[str, object]] | None = []
        """Orders that came before the channel was open: what to run must be the first that the supervisor reads."""

    async def open(self, control: socket.socket, out: int, config: dict[str, object]) -> None:
        """Take both channels and hand over what to run."""
        reader, self._control = await asyncio.open_connection(sock=control)
        self._pipe = asyncio.StreamReader(limit=COALESCE_BYTES)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._pipe), os.fdopen(out, "rb", buffering=0)
        )
        self._report = asyncio.create_task(self._listen(reader), name=f"report of supervisor {self._process.pid}")
        orders, self._early = [config, *(self._early or ())], None
        for order in orders:
            self._tell(order)

    def abandon(self) -> None:
        """It could not be opened: the supervisor ends by itself, and nobody need wait for it."""
        self._over.set()
        self._on_end(self)

    def _tell(self, order: dict[str, object]) -> None:
        if self._early is not None:
            self._early.append(order)
        elif not self._control.is_closing():
            self._control.write(json.dumps(order).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader) -> Ending | None:
        """The supervisor's one line; None if it vanished. If anything is left, the output must end whoever holds it."""
        try:
            line = await reader.readline()
        except ConnectionError:
            line = b""
        ending = _ENDING.validate_json(line) if line.endswith(b"\n") else None
        if ending is None or ending.left:
            asyncio.get_running_loop().call_later(STRAY_SECONDS, self._transport.close)
        return ending

    def beat(self, at: float) -> None:
        """Pass on that the lease was renewed."""
        self._tell({"beat": at})

    def kill(self, *, at_once: bool = False) -> None:
        """Have everything killed: TERM, then KILL; `at_once`: KILL now. Returns before it is done."""
        self._tell({"kill": "now" if at_once else "term"})

    async def write_stdin(self, data: bytes) -> None:
        """Type `data` into the terminal (only for `pty`); lost if the command has ended."""
        self._tell({"stdin": base64.b64encode(data).decode()})
        if not self._control.is_closing():
            await self._control.drain()

    async def ended(self) -> None:
        """Wait until nothing of the command is left."""
        await self._over.wait()

    async def wait(self) -> CommandResult:
        """Wait for the end. However this is left, by a result, an abort or a cancellation: the command is dead then."""
        undo = self._cancel.on_abort(lambda _reason: self.kill())
        try:
            await self._pump()
            ending = await self._report
            await self._process.wait()
        except BaseException:
            await self._put_down()
            raise
        finally:
            undo()
            self._close()
        return self._result(ending)

    async def _put_down(self) -> None:
        self.kill()
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                await self._process.wait()
        except TimeoutError:
            log.exception("supervisor %d did not end", self._process.pid)

    def _close(self) -> None:
        self._report.cancel()
        self._control.close()
        self._transport.close()
        self._over.set()
        self._on_end(self)

    async def _pump(self) -> None:
        """Read until the end of file, passing text on in pieces."""
        pending, since = "", 0.0
        while True:
            try:
                async with asyncio.timeout(since + COALESCE_SECONDS - time.monotonic() if pending else None):
                    data = await self._pipe.read(COALESCE_BYTES)
            except TimeoutError:
                data = None
            if data:
                since = since if pending else time.monotonic()
                pending += self._show(self._output.feed(data))
                if len(pending) < COALESCE_BYTES and time.monotonic() < since + COALESCE_SECONDS:
                    continue
            elif data is not None:
                pending += self._show(self._output.finish())
            if pending:
                await self._send(pending)
                pending = ""
            if data == b"":
                return

    def _show(self, text: str) -> str:
        """What of `text` still fits on the live stream."""
        if self._live_room <= 0:
            return ""
        self._live_room -= len(text)
        return (
            text if self._live_room > 0 else f"{text}\n[… live output ends here: {self._limits.live_bytes} bytes …]\n"
        )

    async def _send(self, text: str) -> None:
        """Observers cannot hurt: output that cannot be shown is still in the result."""
        try:
            await self._emit(text)
        except Exception:
            log.exception("live output failed")
            self._live_room = 0

    def _result(self, ending: Ending | None) -> CommandResult:
        if ending is None:
            log.error(
                "supervisor %d vanished without a word, exit status %s", self._process.pid, self._process.returncode
            )
        elif ending.left or _cause(ending) == "lost":
            log.error("supervisor %d: %s; still running: %s", self._process.pid, ending.cause, ending.left)
        return CommandResult(
            exit_code=ending.exit if ending else None,
            signal=ending.signal if ending else None,
            text=self._output.text,
            total_bytes=self._output.total_bytes,
            truncated=self._output.truncated,
            cause=_cause(ending),
            duration_s=time.monotonic() - self._began,
        )


def _cause(ending: Ending | None) -> Cause:
    if ending is None or ending.cause.startswith("supervisor"):
        return "lost"
    causes: dict[str, Cause] = {"": "", "leftover": "", "timeout": "timeout"}
    return causes.get(ending.cause, "killed")
