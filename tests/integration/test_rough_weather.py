"""What happens to a cluster in bad hands: rubbish in its queues, a closing process, a server that goes away."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.queue.celery_app import RUN_TASK, make_app
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.scenarios import script


@asynccontextmanager
async def job_of(system: Cluster, workspace: Path, command: str) -> AsyncIterator[tuple[Client, Job]]:
    """A job whose agent runs `command`, when that has written its first line to effect.txt."""
    await asyncio.to_thread(workspace.mkdir)
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=workspace, allowed_tools=(f"Bash({command})",), replay=script(command))
        job = await client.submit("Run it.", options)
        await until((workspace / "effect.txt").exists, what="the command's first line")
        yield client, job


async def agent_of(client: Client, job: Job) -> Record:
    return next(record for record in await client.tree(job.id) if record.kind is Kind.AGENT)


@pytest.mark.cluster
async def test_rubbish_in_the_queues_is_dropped_and_work_goes_on(system: Cluster, tmp_path: Path) -> None:
    await asyncio.gather(system.coordinator(), system.worker())
    app, raw = make_app(system.url), Redis.from_url(system.url)
    for arguments in ([{"x": 1}], ["a", 2], [{"v": 1, "task_id": "a-zzz", "run": 1}], []):
        app.send_task(RUN_TASK, args=arguments, queue="a")
    app.send_task("os.system", args=["true"], queue="a")
    raw.lpush("a", "not JSON")
    raw.lpush("a", '{"body": 1}')
    raw.lpush("a", "[]")
    raw.lpush("h:{sessions}", b"\xff\xfe")
    raw.lpush("h:{sessions}", "a-" + "1" * 26)
    async with job_of(system, tmp_path / "workspace", "echo line >> effect.txt") as (_, job):
        assert (await job.result()).state is State.COMPLETED


@pytest.mark.cluster
async def test_closing_processes_hand_over_what_they_own(system: Cluster, tmp_path: Path) -> None:
    await asyncio.gather(system.coordinator("coordinator1"), system.worker("worker1"))
    command = "echo line >> effect.txt; sleep 60"
    async with job_of(system, tmp_path / "workspace", command) as (client, job):
        for name in ("worker1", "coordinator1"):
            system.members[name].signal(signal.SIGTERM)
        for name in ("worker1", "coordinator1"):
            await until(lambda name=name: system.members[name].process.poll() == 0, what=f"{name}'s end")  # type: ignore[misc]  # a default binds the loop's name
        await asyncio.gather(system.coordinator("coordinator2"), system.worker("worker2"))
        assert (await job.result()).state is State.COMPLETED
        agent = await agent_of(client, job)
        assert (agent.fence, agent.attempt) == (2, 0), "a hand-over is no lost lease"


@pytest.mark.cluster
async def test_a_restarted_server_costs_nothing(system: Cluster, tmp_path: Path) -> None:
    await asyncio.gather(system.coordinator(), system.worker())
    command = "echo line >> effect.txt; sleep 1; echo end >> effect.txt"
    async with job_of(system, tmp_path / "workspace", command) as (_, job):
        system.server.kill()
        system.server.start()
        assert (await job.result()).state is State.COMPLETED
    assert (tmp_path / "workspace" / "effect.txt").read_text().split() == ["line", "end"]
