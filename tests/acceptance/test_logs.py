"""`celeriac logs`: what the processes of `up` wrote, and what a task puts out."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.command import CELERIAC, CommandLine
from celeriac.common.testing.replies import dispatch, reply, say, script
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions

COMMAND = "printf 'one\\ntwo\\nred'; echo begun > begun; until test -e go; do sleep 0.05; done; echo; echo last"
SCRIPT = script(
    reply("s", 1, say("I ask for both."), dispatch("sh", command=COMMAND), dispatch("a", prompt="Say it.")),
    reply("s/1.2", 1, say("The words of the agent.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, say("Waiting.")),
    reply("s", 4, say("Done.")),
)


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, {"PATH": os.environ["PATH"], "CELERIAC_HOME": str(tmp_path / "home")})


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "logs"
    folder.mkdir(parents=True)
    (folder / "worker-1.log").write_text("".join(f"w{number}\n" for number in range(60)))
    (folder / "coordinator.log").write_text("c0\nc1 \x1b[2J\n")
    (folder / "worker-1.log.1").write_text("old\n")
    return folder


def test_without_a_name_the_last_lines_of_each_process(line: CommandLine, logs: Path) -> None:
    said = line.run("logs")
    assert said.code == 0
    coordinator, worker = (
        [text.split(None, 1)[1] for text in said.out.splitlines() if text.startswith(name)]
        for name in ("coordinator ", "worker-1 ")
    )
    assert worker == [f"w{number}" for number in range(50, 60)]
    assert coordinator == ["c0", "c1 \ufffd[2J"]
    assert len(line.run("logs", "--lines", "1").out.splitlines()) == 2


def test_with_a_name_its_last_lines_as_they_are(line: CommandLine, logs: Path) -> None:
    assert line.run("logs", "worker-1").out.splitlines() == [f"w{number}" for number in range(10, 60)]
    assert line.run("logs", "worker-1", "-n", "2").out == "w58\nw59\n"
    assert line.run("logs", "worker-1", "-n", "0").out == ""


@pytest.mark.parametrize("name", ["worker-7", "flower", "../up", "s-zzz"])
def test_a_name_that_is_neither_process_nor_task_is_not_found(line: CommandLine, logs: Path, name: str) -> None:
    said = line.run("logs", name)
    assert (said.code, said.out, said.err.count("\n")) == (5, "", 1)
    assert name in said.err


def test_a_home_without_logs_says_so(line: CommandLine) -> None:
    said = line.run("logs")
    assert said.code == 5 and "celeriac up" in said.err


async def test_a_followed_log_goes_on_when_the_file_is_put_aside(line: CommandLine, logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            CELERIAC, "logs", "worker-1", "-f", "-n", "1", stdout=stream, env=dict(line.environ), cwd=tmp_path
        )
    await until(lambda: out.read_text() == "w59\n", what="the last line")
    with (logs / "worker-1.log").open("a") as log:
        log.write("half")
        log.flush()
        log.write(" whole\nbefore\n")
    (logs / "worker-1.log").rename(logs / "worker-1.log.1")
    (logs / "worker-1.log").write_text("after\n")
    await until(lambda: out.read_text() == "w59\nhalf whole\nbefore\nafter\n", what="old and new lines")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(20):
        assert await process.wait() == 130


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path) as started:
        await asyncio.gather(started.coordinator(), started.worker())
        yield started


async def task_of(client: Client, job: Job, kind: str) -> str:
    return next((record.task_id for record in await client.tree(job.id) if record.kind.value == kind), "")


@pytest.mark.cluster
async def test_a_tasks_output_is_printed_and_followed_to_its_end(system: Cluster, tmp_path: Path) -> None:
    line = CommandLine(tmp_path, system.environ)
    work = tmp_path / "work"
    work.mkdir()
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=work, allowed_tools=(f"Bash({COMMAND})",), replay=SCRIPT)
        job = await client.submit("Do both.", options)
        await until((work / "begun").exists, what="the command")
        shell = await task_of(client, job, "sh")
        out = tmp_path / "out"
        with out.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                CELERIAC, "logs", shell, "--follow", stdout=stream, stderr=asyncio.subprocess.PIPE, env=system.environ
            )
        await until(lambda: out.read_text() == "one\ntwo\nred", what="output while it runs")
        assert line.run("logs", shell).out == "one\ntwo\nred\n"
        assert line.run("logs", shell, "--lines", "1").out == "red\n"
        (work / "go").touch()
        async with asyncio.timeout(30):
            _, err = await process.communicate()
        assert (process.returncode, err.decode()) == (0, f"celeriac: {shell} is completed\n")
        assert out.read_text() == "one\ntwo\nred\nlast\n"
        assert (await job.result()).result == "Done."
        assert line.run("logs", await task_of(client, job, "a"), "--follow").out == "The words of the agent.\n"
    assert line.run("logs", "a-0000000000000").code == 5
    assert line.run("logs", shell, "--redis-url", "redis://127.0.0.1:1/0").code == 4
