"""Servers for tests: a private real one as a process of its own, and the in-memory twin."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from fakeredis import FakeAsyncRedis, FakeServer

from celeriac.common.substrate.embedded import command, find_binary, free_port
from celeriac.common.substrate.leases import Terms
from celeriac.common.substrate.scripts import ScriptLibrary
from celeriac.common.substrate.store import Substrate

START_SECONDS = 20.0
END_SECONDS = 10.0
_LOOK_SECONDS = 0.02


class PrivateServer:
    """A real server in `folder`, tied to this process. Synchronous: one serves the event loops of many tests."""

    def __init__(self, folder: Path) -> None:
        """Nothing runs before `start`."""
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What clients connect to; the same after a restart."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start it (again, on what its append-only file holds) and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ("--port", str(self.port))
        self._process = subprocess.Popen(command(find_binary(), self.folder, where), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError("the test server did not start")
            time.sleep(_LOOK_SECONDS)

    def signal(self, number: int) -> None:
        """Send a signal, e.g. SIGSTOP and SIGCONT."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(END_SECONDS)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


TERMS = Terms(lease_ms=15_000, max_attempts=3, max_attempts_total=20)
"""The defaults of the product."""


def in_memory(
    *,
    terms: Terms = TERMS,
    prefix: str = "",
    scripts: ScriptLibrary | None = None,
    server: FakeServer | None = None,
) -> Substrate:
    """The twin on fakeredis, which really runs the Lua scripts; `server` shares one between several substrates."""
    server = server or FakeServer()
    client = FakeAsyncRedis(server=server, protocol=2)
    blocking = FakeAsyncRedis(server=server, protocol=2)
    return Substrate.over(client, blocking, prefix=prefix, terms=terms, scripts=scripts)
