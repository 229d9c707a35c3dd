"""A real system for tests: server, coordinators, workers and stand-in as processes of their own, started as a user
starts them."""

import os
import signal
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from celeriac.common.contract.json import JsonObject
from celeriac.common.settings import environment
from celeriac.common.substrate.embedded import Fsync
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.waiting import until

CELERIAC = Path(sysconfig.get_path("scripts")) / "celeriac"
READY_SECONDS = 40.0
END_SECONDS = 15.0
ROLES = ("coordinator", "worker")


@dataclass(slots=True)
class Member:
    """One process of the cluster."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        """What it wrote on stderr so far."""
        return self.log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        self.process.wait(END_SECONDS)


@dataclass(slots=True)
class Cluster:
    """Starts, names and ends the processes."""

    folder: Path
    server: PrivateServer
    environ: dict[str, str]
    members: dict[str, Member] = field(default_factory=dict)
    standin_log: Path = Path()
    points: Path | None = None
    """Where tests hold the named points of processes that are started from now on (`testing.remote`)."""

    @property
    def url(self) -> str:
        """Of the server; the same after a restart."""
        return self.server.url

    async def spawn(self, name: str, *command: str, ready: str, extra: Mapping[str, str] | None = None) -> Member:
        """Start `celeriac COMMAND…` in a folder that is nobody's workspace and wait for its `ready` words."""
        log = self.folder / f"{name}.log"
        cwd = self.folder / "cwd"
        cwd.mkdir(exist_ok=True)
        with log.open("ab") as out:
            process = subprocess.Popen(  # noqa: ASYNC220 - starting is quick; waiting for it is what takes time
                [str(CELERIAC), *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd,
                env={**self.environ, **(extra or {})}, start_new_session=True,
            )  # fmt: skip
        member = Member(name, process, log)
        self.members[name] = member

        def is_ready() -> bool:
            assert process.poll() is None, f"{name} ended: {member.said()[-2000:]}"
            return ready in member.said()

        await until(is_ready, seconds=READY_SECONDS, what=f"{name} ready")
        return member

    @property
    def _tied(self) -> tuple[str, ...]:
        """Has a process end when its test's process is gone, and be held where the test wants."""
        held = () if self.points is None else ("--points", str(self.points))
        return "--parent-pid", str(os.getpid()), *held

    async def coordinator(self, name: str = "coordinator") -> Member:
        """Start a coordinator process."""
        return await self.spawn(name, "coordinator", "--name", name, *self._tied, ready="coordinator ready")

    async def worker(self, name: str = "worker") -> Member:
        """Start a worker process."""
        return await self.spawn(name, "worker", "--name", name, *self._tied, ready="worker ready")

    async def flower(self, password: str) -> str:
        """Start Flower, whose user is `celeriac`; its address."""
        extra = {"CELERIAC_FLOWER_PASSWORD": password}
        command = ("flower", "--port", "0", *self._tied)
        member = await self.spawn("flower", *command, ready="flower ready", extra=extra)
        return next(word for word in member.said().split() if word.startswith("http://"))

    async def standin(self, script: str) -> None:
        """Start the stand-in with this script; processes started later ask it."""
        file = self.folder / "script.jsonl"
        file.write_text(script)
        self.standin_log = self.folder / "standin.jsonl"
        bodies = self.folder / "bodies"
        options = ("--log", str(self.standin_log), "--bodies", str(bodies), "--parent-pid", str(os.getpid()))
        command = ("dev", "standin", "--script", str(file), *options)
        member = await self.spawn("standin", *command, ready="http://")
        address = next(word for word in member.said().split() if word.startswith("http://"))
        self.environ |= {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "test-key", "CELERIAC_STANDIN": "1"}

    def kill(self, pid: int) -> Member:
        """SIGKILL the member with this process id, and reap it."""
        (victim,) = (member for member in self.members.values() if member.pid == pid)
        victim.kill()
        return victim

    def requests(self) -> list[JsonObject]:
        """The stand-in's log so far; a line that is still being written is left out."""
        if not self.standin_log.exists():
            return []
        whole = self.standin_log.read_bytes().rpartition(b"\n")[0]
        return [orjson.loads(line) for line in whole.splitlines()]

    def bodies(self, call: str) -> list[JsonObject]:
        """The request bodies of a call (`PATH-RUN-TURN`, with `_` for each `/`) that the stand-in took, in order."""
        files = sorted((self.folder / "bodies").glob(f"*-{call}-*.json"))
        return [orjson.loads(file.read_bytes()) for file in files]

    def refuse_shams(self) -> None:
        """Server, coordinator and worker must be processes of their own, none of them this one."""
        named = {role: [m.pid for n, m in self.members.items() if n.startswith(role)] for role in ROLES}
        assert all(named.values()), f"not every role has a process: {named}"
        pids = [self.server.pid, *(pid for found in named.values() for pid in found)]
        assert len(set(pids)) == len(pids), "two roles share a process"
        assert os.getpid() not in pids, "a role runs inside the test's own process"

    def end(self) -> None:
        """SIGKILL whatever is left."""
        for member in self.members.values():
            if member.process.poll() is None:
                member.signal(signal.SIGCONT)
                member.kill()


@asynccontextmanager
async def cluster(
    folder: Path, *, lease_seconds: float = 2.0, scan_seconds: float = 0.3, fsync: Fsync = "always"
) -> AsyncIterator[Cluster]:
    """A server and nothing else yet; everything that was started is gone afterwards.

    `fsync`: by `everysec` a server whose disk is slow puts off its writes for up to 2 s, and a kill of it loses what it
    had answered; tests kill it."""
    with PrivateServer(folder / "redis", fsync=fsync) as server:
        environ = {
            **environment(),
            "CELERIAC_HOME": str(folder / "home"),
            "CELERIAC_REDIS_URL": server.url,
            "CELERIAC_LEASE_SECONDS": str(lease_seconds),
            "CELERIAC_SUPERVISOR_SCAN_SECONDS": str(scan_seconds),
        }
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
            environ.pop(name, None)
        started = Cluster(folder, server, environ)
        try:
            yield started
        finally:
            started.end()
