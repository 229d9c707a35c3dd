"""Servers for tests: a private real one as a process of its own, and the in-memory twin."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

from fakeredis import FakeAsyncRedis, FakeServer
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celeriac.common.substrate.embedded import Fsync, command, find_binary, free_port
from celeriac.common.substrate.leases import Terms
from celeriac.common.substrate.scripts import ScriptLibrary
from celeriac.common.substrate.store import DEFAULT, Substrate

START_SECONDS = 20.0
PORT_TRIES = 5
END_SECONDS = 10.0
_LOOK_SECONDS = 0.02


class PrivateServer:
    """A real server in `folder`, tied to this process. Synchronous: one serves the event loops of many tests."""

    def __init__(self, folder: Path, *, fsync: Fsync = "everysec") -> None:
        """Nothing runs before `start`."""
        self.folder = folder
        self.port = free_port()
        self._fsync = fsync
        self._kept = False
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
        """Start it (again, on what its append-only file holds) and wait until it answers.

        A port that somebody else took meanwhile is given up for another one, but never after the first start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(PORT_TRIES):
            if self._started():
                self._kept = True
                return
            if self._kept:
                break
            self.port = free_port()
        raise AssertionError("the test server did not start")

    def _started(self) -> bool:
        where = ("--port", str(self.port))
        self._process = subprocess.Popen(
            command(find_binary(), self.folder, where, fsync=self._fsync), stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def signal(self, number: int) -> None:
        """Send a signal, e.g. SIGSTOP and SIGCONT."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(END_SECONDS)

    def _answers(self) -> bool:
        """Whether it is ours that answers: another test's server may have the port."""
        try:
            with Redis.from_url(self.url, socket_timeout=1, protocol=2, retry=Retry(NoBackoff(), 0)) as probe:
                return int(probe.info("server")["process_id"]) == self.pid
        except (RedisError, OSError):
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def in_memory(
    *,
    terms: Terms = DEFAULT,
    prefix: str = "",
    scripts: ScriptLibrary | None = None,
    server: FakeServer | None = None,
) -> Substrate:
    """The twin on fakeredis, which really runs the Lua scripts; `server` shares one between several substrates."""
    server = server or FakeServer()
    client = FakeAsyncRedis(server=server, protocol=2)
    blocking = FakeAsyncRedis(server=server, protocol=2)
    return Substrate.over(client, blocking, prefix=prefix, terms=terms, scripts=scripts)
