"""What a person sees and does: Ctrl-C on a followed job; short tasks beside a long one (C77)."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from celeriac.common.testing.cluster import CELERIAC, Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions


async def command_job(client: Client, workspace: Path, command: str) -> Job:
    """A job that runs one command and ends with it."""
    lines = (reply("s", 1, dispatch("sh", command=command)), reply("s", 2, say("Run.")), reply("s", 3, say("Run.")))
    options = JobOptions(cwd=workspace, allowed_tools=(f"Bash({command})",), replay=script(*lines))
    return await client.submit("Run it.", options)


@pytest.mark.cluster
@pytest.mark.parametrize(("presses", "code", "goes_on"), [(1, 130, True), (2, 6, False)])
async def test_ctrl_c_detaches_once_and_stops_twice(
    presses: int, code: int, goes_on: bool, shared: Cluster, tmp_path: Path
) -> None:
    async with Client.connect(shared.url) as client:
        job = await command_job(client, tmp_path, "echo begun > begun; sleep 300")
        await until((tmp_path / "begun").exists, what="the command")
        said = tmp_path / "said"
        with said.open("wb") as out:
            follower = await asyncio.create_subprocess_exec(
                CELERIAC, "follow", job.id, env=shared.environ, stdout=out, stderr=out
            )
        await until(lambda: b"AgentTool" in said.read_bytes(), what="the follower's first lines")
        for press in range(presses):
            os.kill(follower.pid, signal.SIGINT)
            # The second press means another thing than the first, so the first must have been heard.
            await until(lambda: b"Ctrl-C again" in said.read_bytes(), what=f"an answer to press {press + 1}")
        async with asyncio.timeout(30):
            assert await follower.wait() == code
        assert (await client.get(job.id)).state.terminal is not goes_on
        if goes_on:
            assert f"celeriac follow {job.id}".encode() in said.read_bytes()
            await client.stop(job.id, "the test is over")


@pytest.mark.cluster
async def test_short_tasks_do_not_wait_behind_a_long_one(system: Cluster, tmp_path: Path) -> None:
    await system.coordinator()
    for number in (1, 2):
        name = f"worker{number}"
        await system.spawn(name, "worker", "--name", name, "--concurrency", "1", ready="worker ready")
    async with Client.connect(system.url) as client:
        long = await command_job(client, tmp_path, "echo begun > begun; until test -e go; do sleep 0.05; done")
        await until((tmp_path / "begun").exists, what="the long command")
        short = [await command_job(client, tmp_path, "true") for _ in range(3)]
        async with asyncio.timeout(30):
            for job in short:
                assert (await job.result()).result == "Run."
        assert not (await client.get(long.id)).state.terminal
        (tmp_path / "go").touch()
        async with asyncio.timeout(30):
            await long.result()
