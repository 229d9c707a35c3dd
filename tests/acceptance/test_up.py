"""`celeriac up`: a cluster that other shells find, whose processes come back, and of which nothing is left."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from redis.asyncio import Redis

from celeriac.common.contract.json import JsonObject
from celeriac.common.testing.command import CELERIAC, CommandLine
from celeriac.common.testing.processes import of_home
from celeriac.common.testing.replies import dispatch, reply, say, script
from celeriac.common.testing.waiting import until

START_SECONDS = 90.0
END_SECONDS = 40.0


@dataclass
class Started:
    """One `celeriac up` process."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    async def ended(self) -> int:
        await until(lambda: self.process.poll() is not None, seconds=END_SECONDS, what="the end of up")
        return self.process.returncode


@dataclass
class Place:
    """A home, and everything that was started in it."""

    folder: Path
    ups: list[Started] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def line(self) -> CommandLine:
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return CommandLine(work, self.environ)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "CELERIAC_HOME": str(self.home),
            "CELERIAC_LEASE_SECONDS": "2",
            "CELERIAC_SUPERVISOR_SCAN_SECONDS": "0.3",
        }

    def up(self, *arguments: str) -> Started:
        """Start one and do not wait."""
        log = self.folder / f"up-{len(self.ups)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(CELERIAC), "up", *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=self.line.cwd, env=self.environ, start_new_session=True,
            )  # fmt: skip
        started = Started(process, log)
        self.ups.append(started)
        return started

    async def ready(self, *arguments: str) -> Started:
        started = self.up(*arguments)

        def announced() -> bool:
            assert started.process.poll() is None, started.said()
            return "next, in another shell" in started.said()

        await until(announced, seconds=START_SECONDS, what="up ready")
        return started

    @property
    def run_file(self) -> JsonObject:
        found: JsonObject = json.loads((self.home / "up.json").read_text())
        return found

    def processes(self, *words: str) -> list[int]:
        """Processes with this home whose command line holds these words."""
        return of_home(self.home, *words)

    async def nothing_left(self) -> None:
        await until(lambda: not self.processes(), seconds=END_SECONDS, what="no process of this home")
        assert not (self.home / "up.json").exists()

    def replay(self, *lines: JsonObject, **job: str) -> str:
        file = self.folder / "replay.jsonl"
        file.write_text(script(*lines, **job))
        return str(file)


COMMAND = "echo begun >> begun; until test -e go; do sleep 0.05; done; echo it went"
JOB = (reply("s", 1, dispatch("sh", command=COMMAND)), reply("s", 2, say("Waiting.")))
WENT = reply("s", 3, say("It is done."), expect=["<status>completed</status>", "it went"])
LOST = reply("s", 3, say("It was lost."), expect=["<status>failed</status>", "effect unknown"])


def console_of(started: Started) -> tuple[str, tuple[str, str]]:
    """Address, user and password of Flower, as `up` told them."""
    found = re.search(r"Flower: (http://127\.0\.0\.1:\d+) user (\S+), password (\S+)", started.said())
    assert found is not None, started.said()
    return found[1], (found[2], found[3])


async def flower_answers(address: str, auth: tuple[str, str]) -> None:
    """With this password, and not without it."""
    async with httpx2.AsyncClient(base_url=address) as pages:
        assert (await pages.get("/api/tasks", auth=auth)).status_code == 200
        assert (await pages.get("/api/tasks")).status_code == 401


def submit(place: Place, *lines: JsonObject) -> str:
    """Hand a job over from another shell, which finds the server by itself."""
    said = place.line.run("submit", "--replay", place.replay(*lines), "--allowed-tools", f"Bash({COMMAND})")
    assert said.code == 0, said.err
    return said.out.strip()


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """Heard by children also where the tests run under nohup: `up` rightly stays deaf if it was started so."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    for started in made.ups:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()
    await until(lambda: not made.processes(), seconds=END_SECONDS, what="no process after the test")


@pytest.mark.cluster
async def test_other_shells_find_it_killed_parts_come_back_and_ctrl_c_ends_all(place: Place) -> None:
    started = await place.ready("--workers", "2", "--flower-port", "0")
    assert place.run_file["pid"] == started.process.pid
    second = place.line.run("up")
    assert (second.code, second.err.count("\n")) == (1, 1)
    assert f"pid {started.process.pid}" in second.err and str(place.run_file["url"]) in second.err

    address, auth = console_of(started)
    await flower_answers(address, auth)
    (flower,) = place.processes("flower")
    os.kill(flower, signal.SIGKILL)
    await until(lambda: "flower is back" in started.said(), seconds=START_SECONDS, what="the console again")
    await flower_answers(address, auth)
    assert auth[1] not in "".join(file.read_text() for file in (place.home / "logs").iterdir())

    (worker,) = place.processes("worker", "worker-1")
    os.kill(worker, signal.SIGKILL)
    await until(lambda: "worker-1 is back" in started.said(), seconds=START_SECONDS, what="the worker again")
    assert "worker-1 was killed by SIGKILL; it is started again" in started.said()
    (other,) = place.processes("worker", "worker-1")
    assert other != worker and len(place.processes("worker")) == 2

    job = submit(place, *JOB, WENT)
    follower = await asyncio.create_subprocess_exec(
        CELERIAC, "follow", job, env=place.environ, cwd=place.line.cwd,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await until((place.line.cwd / "begun").exists, what="the command")
    (place.line.cwd / "go").touch()
    async with asyncio.timeout(60):
        out, err = await follower.communicate()
    assert (follower.returncode, out) == (0, b"It is done.\n"), err

    started.process.send_signal(signal.SIGINT)
    assert await started.ended() == 0, started.said()
    await place.nothing_left()


@pytest.mark.cluster
async def test_children_go_with_a_killed_up_and_the_next_one_goes_on_with_its_jobs(place: Place) -> None:
    started = await place.ready("--no-flower")
    job = submit(place, *JOB, LOST)
    await until((place.line.cwd / "begun").exists, what="the command")
    first = place.run_file
    started.process.kill()
    started.process.wait()
    # At once, while the children of the first may still be dying.
    again = await place.ready("--no-flower")
    assert place.run_file["pid"] == again.process.pid != first["pid"]
    assert job in place.line.run("list").out
    said = place.line.run("follow", job)
    assert (said.code, said.out.splitlines()[-1]) == (0, "It was lost."), said.err
    assert (place.line.cwd / "begun").read_text() == "begun\n"
    # The server of the first is gone, so its children may need the whole grace of an orphan.
    one_each = {"worker": 1, "coordinator": 1}
    await until(
        lambda: {role: len(place.processes(role)) for role in one_each} == one_each,
        seconds=END_SECONDS,
        what="the children of the first gone",
    )
    again.process.send_signal(signal.SIGTERM)
    assert await again.ended() == 0, again.said()
    await place.nothing_left()


@pytest.mark.cluster
async def test_of_two_that_start_in_the_same_moment_one_runs(place: Place) -> None:
    both = [place.up("--no-flower"), place.up("--no-flower")]
    await until(lambda: any(one.process.poll() is not None for one in both), seconds=START_SECONDS, what="one refused")
    refused, runs = sorted(both, key=lambda one: one.process.poll() is None)
    assert refused.process.returncode == 1
    assert refused.said().count("\n") == 1 and "pid" in refused.said(), refused.said()
    await until(lambda: "next, in another shell" in runs.said(), seconds=START_SECONDS, what="the other ready")
    assert place.run_file["pid"] == runs.process.pid
    runs.process.send_signal(signal.SIGHUP)  # the terminal was closed
    assert await runs.ended() == 0, runs.said()
    await place.nothing_left()


@pytest.mark.cluster
async def test_ctrl_c_during_the_start_leaves_nothing(place: Place) -> None:
    started = place.up("--workers", "2", "--no-flower")
    await until(lambda: place.processes("worker"), seconds=START_SECONDS, what="children")
    started.process.send_signal(signal.SIGINT)
    assert await started.ended() == 130, started.said()
    await place.nothing_left()


@pytest.mark.cluster
async def test_ctrl_c_twice_kills_what_does_not_end(place: Place) -> None:
    started = await place.ready("--no-flower")
    (worker,) = place.processes("worker")
    os.kill(worker, signal.SIGSTOP)
    started.process.send_signal(signal.SIGINT)
    await until(lambda: "Ctrl-C again kills" in started.said(), what="the first heard")
    started.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(10):  # less than the grace of a child
        assert await started.ended() == 0
    await place.nothing_left()


@pytest.mark.cluster
async def test_a_process_that_ends_again_and_again_ends_up(place: Place) -> None:
    started = await place.ready("--no-flower")
    killed: set[int] = set()

    def next_one() -> set[int]:
        return set(place.processes("coordinator")) - killed

    for _ in range(5):
        await until(next_one, seconds=START_SECONDS, what="its next start")
        for pid in next_one():
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    assert await started.ended() == 1
    last = started.said().splitlines()[-1]
    assert last.startswith("celeriac: coordinator ended 5 times within 60 s") and str(place.home / "logs") in last
    await place.nothing_left()


@pytest.mark.cluster
async def test_a_killed_server_comes_back_at_its_address_with_its_jobs(place: Place) -> None:
    started = await place.ready("--no-flower")
    url = str(place.run_file["url"])
    job = submit(place, *JOB, WENT)
    await until((place.line.cwd / "begun").exists, what="the command")
    async with Redis.from_url(url) as client:
        os.kill(int((await client.info("server"))["process_id"]), signal.SIGKILL)
    await until(lambda: "server is back" in started.said(), seconds=START_SECONDS, what="the server again")
    assert place.run_file["url"] == url
    (place.line.cwd / "go").touch()
    said = place.line.run("follow", job)
    assert (said.code, said.out.splitlines()[-1]) == (0, "It is done."), said.err
    started.process.send_signal(signal.SIGINT)
    assert await started.ended() == 0, started.said()
    await place.nothing_left()
