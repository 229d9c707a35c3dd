"""Commands of tasks: started under a supervisor each, stopped by task (SECURITY, Always on; PROTOCOL 4, local clock).

One `Commands` per worker process. It knows processes; it does not know tools, records or leases: whoever renews a lease
calls `beat`. Nothing here waits for a process that it did not start itself.
"""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.contract.ids import TaskId
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.tools.base import Emit
from celeriac.workers.shell.running import CommandResult, OutputLimits, Running

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_OWN_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
"""Of the supervisor itself; the command's environment is passed to it as data."""

DRAIN_SECONDS = 0.3
"""How long what a command left in the background may go on writing after the command itself has ended."""
GRACE_SECONDS = 1.0
"""From TERM to KILL (DESIGN 4)."""

FIXED_ENVIRONMENT = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "CI": "1",
}
"""SECURITY, Always on: nothing waits for a person or paints."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INHERITED = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "VIRTUAL_ENV"})


class CommandNotStarted(CeleriacError):
    """The command's supervisor could not be started: nothing ran."""


def command_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: what of `given` is on the allow-list (no key is), and the fixed variables."""
    kept = {name: value for name, value in given.items() if name in _INHERITED or name.startswith("LC_")}
    return {"PATH": _DEFAULT_PATH, **kept, **FIXED_ENVIRONMENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: exactly `text`, by bash without start-up files."""

    text: str
    cwd: Path
    env: Mapping[str, str]
    """The whole environment (see `command_environment`)."""
    timeout_s: float | None = None
    """TERM to everything after this long, KILL a second later; None = no limit."""
    pty: bool = False
    """A terminal instead of a pipe, with stdin that can be written to."""
    limits: OutputLimits = field(default_factory=OutputLimits)


class Commands:
    """All commands of one worker process."""

    def __init__(self, max_silence_s: float | None) -> None:
        """Commands die `max_silence_s` (2/3 of the lease) after the last `beat` of their task; None = never."""
        self._max_silence_s = max_silence_s
        self._beats: dict[TaskId, float] = {}
        self._running: dict[TaskId, set[Running]] = {}

    def beat(self, task_id: TaskId, sent_at: float | None = None) -> None:
        """The lease was claimed or renewed by a request *sent* at `sent_at`, CLOCK_BOOTTIME seconds (default now)."""
        at = boottime() if sent_at is None else sent_at
        self._beats[task_id] = max(at, self._beats.get(task_id, at))
        for running in self._running.get(task_id, ()):
            running.beat(self._beats[task_id])

    def forget(self, task_id: TaskId) -> None:
        """The run has ended: its beats are of no use to a later one."""
        self._beats.pop(task_id, None)

    async def kill_all(self, task_id: TaskId, *, at_once: bool = False) -> None:
        """End all commands of a task: TERM, and KILL after GRACE_SECONDS or `at_once`. Returns when they are dead."""
        for running in tuple(self._running.get(task_id, ())):
            running.kill(at_once=at_once)
        while waiting := tuple(self._running.get(task_id, ())):
            await asyncio.gather(*(running.ended() for running in waiting))

    async def close(self) -> None:
        """End everything, at shutdown."""
        await asyncio.gather(*(self.kill_all(task_id) for task_id in tuple(self._running)))

    def count(self, task_id: TaskId) -> int:
        """How many commands of a task run."""
        return len(self._running.get(task_id, ()))

    async def start(self, command: Command, *, task_id: TaskId, cancel: AbortNode, emit: Emit) -> Running:
        """Start it; the caller must `wait()` for it. Raises CommandNotStarted."""
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", _SUPERVISOR, str(theirs.fileno()), str(out_write)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), out_write),
                cwd=command.cwd,
                env=_OWN_ENVIRONMENT,
                start_new_session=True,
            )
        except BaseException as error:
            ours.close()
            os.close(out_read)
            if isinstance(error, OSError):
                raise CommandNotStarted(
                    f"the command could not be started in {command.cwd}: {error.strerror}"
                ) from error
            raise
        finally:
            theirs.close()
            os.close(out_write)
        running = Running(
            process, emit=emit, cancel=cancel, limits=command.limits, on_end=partial(self._forget, task_id)
        )
        self._running.setdefault(task_id, set()).add(running)
        try:
            await running.open(ours, out_read, self._config(command, task_id))
        except BaseException:  # cancelled: the supervisor ends by itself, since the runner is gone
            ours.close()
            running.abandon()
            raise
        return running

    def _forget(self, task_id: TaskId, ended: Running) -> None:
        left = self._running.get(task_id, set())
        left.discard(ended)
        if not left:
            self._running.pop(task_id, None)

    def _config(self, command: Command, task_id: TaskId) -> dict[str, object]:
        return {
            "argv": ["bash", "--norc", "--noprofile", "-c", command.text],
            "env": dict(command.env),
            "pty": command.pty,
            "timeout_s": command.timeout_s,
            "max_silence_s": self._max_silence_s,
            "beat_at": self._beats.get(task_id, boottime()),
            "drain_s": DRAIN_SECONDS,
            "grace_s": GRACE_SECONDS,
        }

    async def run(self, command: Command, *, task_id: TaskId, cancel: AbortNode, emit: Emit) -> CommandResult:
        """Start it and wait for its end. Raises CommandNotStarted."""
        return await (await self.start(command, task_id=task_id, cancel=cancel, emit=emit)).wait()


def boottime() -> float:
    """Seconds of the clock that leases are judged by: it goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
