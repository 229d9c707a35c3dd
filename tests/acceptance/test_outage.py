"""Commands while the server is away: they wait and say so, go on by themselves, or fail clearly. The server is a
process that is really killed."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from celeriac.common.substrate.patience import CLIENT_PATIENCE_SECONDS, FIRST_PATIENCE_SECONDS
from celeriac.common.testing.command import CELERIAC, CommandLine
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.waiting import until

AWAY = "does not answer; waiting up to"
BACK = "celeriac: the server is back\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrivateServer]:
    with PrivateServer(tmp_path / "redis", fsync="always") as started:
        yield started


@pytest.fixture
def line(server: PrivateServer, tmp_path: Path) -> CommandLine:
    work = tmp_path / "work"
    work.mkdir()
    return CommandLine(work, {"CELERIAC_HOME": str(tmp_path / "home"), "CELERIAC_REDIS_URL": server.url})


class Started:
    """A command that runs, and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self._folder = folder

    @property
    def out(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self._folder / "err").read_text()

    async def says(self, words: str) -> None:
        await until(lambda: words in self.err or words in self.out, seconds=30, what=f"{words!r} in {self.err!r}")

    async def end(self, seconds: float = 40) -> int:
        async with asyncio.timeout(seconds):
            return await self.process.wait()


@asynccontextmanager
async def started(line: CommandLine, *arguments: str) -> AsyncIterator[Started]:
    folder = line.cwd.parent / f"said-{time.monotonic_ns()}"
    await asyncio.to_thread(folder.mkdir)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        environ = {"PATH": "/usr/bin:/bin", **line.environ}
        process = await asyncio.create_subprocess_exec(
            CELERIAC, *arguments, cwd=line.cwd, env=environ, stdout=out, stderr=err, stdin=asyncio.subprocess.DEVNULL
        )
    try:
        yield Started(process, folder)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def restart(server: PrivateServer) -> None:
    await asyncio.to_thread(server.start)


@pytest.mark.parametrize(
    "command", ["submit", "batch", "send", "stop", "show", "result", "follow", "list", "transcript", "logs"]
)
async def test_a_command_begun_in_an_outage_waits_for_the_server(
    command: str, line: CommandLine, server: PrivateServer
) -> None:
    job = line.run("submit", "Say hi").out.strip()
    if command in {"result", "follow"}:
        assert line.run("stop", job).code == 0
    server.kill()
    (line.cwd / "jobs.jsonl").write_text('{"prompt": "Do it."}\n')
    given = {"submit": ["Do it."], "batch": ["jobs.jsonl"], "list": [], "send": [job, "And now?"]}
    arguments = given.get(command, [job])
    async with started(line, command, *arguments) as begun:
        await begun.says(f"celeriac: the server at {server.url} {AWAY} {FIRST_PATIENCE_SECONDS:.0f} s …\n")
        await restart(server)
        assert await begun.end() == (6 if command in {"result", "follow"} else 0), begun.err
        assert BACK in begun.err
        assert begun.err.count(AWAY) == 1
    listed = json.loads(line.run("list", "--output-format", "json").out)
    assert len(listed) == (2 if command in {"submit", "batch"} else 1)


async def test_a_follower_outlives_a_restart_and_misses_nothing(line: CommandLine, server: PrivateServer) -> None:
    job = line.run("submit", "Say hi").out.strip()
    async with started(line, "follow", job, "--output-format", "stream-json") as follower:
        await follower.says('"created"')
        for number in (1, 2):
            server.kill()
            await until(lambda number=number: follower.err.count(AWAY) == number, what="the line")  # type: ignore[misc]  # a default binds the loop's name
            await restart(server)
            await until(lambda number=number: follower.err.count(BACK) == number, what="the other line")  # type: ignore[misc]
        assert line.run("stop", job).code == 0
        assert await follower.end() == 6
        lines = [json.loads(text) for text in follower.out.splitlines()]
    assert f"{AWAY} {CLIENT_PATIENCE_SECONDS:.0f} s …" in follower.err
    states = [each["data"]["state"] for each in lines if each["type"] == "system"]
    assert states == ["created", "stopped"]
    assert lines[-1]["type"] == "result"
    again = line.run("follow", job, "--output-format", "stream-json", "--after", lines[0]["event_id"])
    assert [json.loads(text) for text in again.out.splitlines()] == lines[1:]
    none = line.run("follow", job, "--output-format", "stream-json", "--after", lines[-1]["event_id"])
    assert [json.loads(text)["type"] for text in none.out.splitlines()] == ["result"]


async def test_a_follower_gives_up_after_the_bound_with_code_4(line: CommandLine, server: PrivateServer) -> None:
    job = line.run("submit", "Say hi").out.strip()
    async with started(line, "follow", job) as follower:
        await follower.says("created")
        server.kill()
        await follower.says(AWAY)
        assert await follower.end(CLIENT_PATIENCE_SECONDS + 20) == 4
        told, last = follower.err.splitlines()[-2:]
    assert AWAY in told
    assert "answers no longer" in last
    await restart(server)
    assert line.run("show", job).code == 0


async def test_a_server_that_hangs_is_told_as_well(line: CommandLine, server: PrivateServer) -> None:
    job = line.run("submit", "Say hi").out.strip()
    async with started(line, "follow", job) as follower:
        await follower.says("created")
        server.signal(signal.SIGSTOP)
        try:
            await follower.says(AWAY)
        finally:
            server.signal(signal.SIGCONT)
        await follower.says(BACK)
        assert line.run("stop", job).code == 0
        assert await follower.end() == 6


def test_what_is_no_event_id_is_a_usage_error(line: CommandLine) -> None:
    said = line.run("follow", "s-0000000000000", "--after", "yesterday")
    assert said.code == 2
    assert "'yesterday' is not an event id" in said.err
