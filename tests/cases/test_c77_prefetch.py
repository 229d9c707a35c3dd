"""C77: a task that waits behind a long one in a worker's own memory, while other workers idle. Nothing is reserved:
what is not run waits in the queue, for whoever is free first, whatever its kind."""

import asyncio
from pathlib import Path

import pytest
from redis import Redis

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.queue.celery_app import make_app
from celeriac.common.queue.routing import queue_for
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions

pytestmark = pytest.mark.cluster

LONG = "echo long >> started.txt; until [ -e enough ]; do sleep 0.05; done"
SHORT = "echo short >> started.txt"
SHORTS = 3


def plan(kind: Kind) -> str:
    """A long task first, then the short ones, in one answer; agents run the same commands as shells do."""
    commands = [LONG, *[SHORT] * SHORTS]
    lines: list[JsonObject] = [reply("s", turn, say("Noted.")) for turn in range(2, 20)]
    if kind is Kind.SHELL:
        return script(reply("s", 1, *(dispatch("sh", command=command) for command in commands)), *lines)
    for block, command in enumerate(commands):
        path = f"s/1.{block}"
        lines += [reply(path, 1, use("Bash", command=command)), reply(path, 2, say("Done."))]
    return script(reply("s", 1, *(dispatch("a", prompt="Run it.") for _ in commands)), *lines)


class Scene:
    """Workers that run one task at a time, and one job of four tasks."""

    def __init__(self, system: Cluster, client: Client, workspace: Path) -> None:
        self.system, self.client, self.workspace = system, client, workspace
        workspace.mkdir()
        system.environ["CELERIAC_WORKER_CONCURRENCY"] = "1"

    async def submit(self, kind: Kind) -> Job:
        allowed = (f"Bash({LONG})", f"Bash({SHORT})")
        return await self.client.submit(
            "Do it.", JobOptions(cwd=self.workspace, allowed_tools=allowed, replay=plan(kind))
        )

    async def tasks(self, job: Job) -> list[Record]:
        """Of the job, the long one first."""
        found = [record for record in await self.client.tree(job.id) if record.parent]
        return sorted(found, key=lambda record: record.path)

    async def shorts_end(self, job: Job) -> None:
        async def ended() -> bool:
            states = [record.state for record in await self.tasks(job)]
            return states.count(State.COMPLETED) == SHORTS

        await until(ended, seconds=20, what="the end of the short ones")

    async def end(self, job: Job) -> None:
        """Let the long one end; it must be the last."""
        (self.workspace / "enough").touch()
        assert (await job.result()).state is State.COMPLETED
        long, *shorts = await self.tasks(job)
        assert {record.state for record in (long, *shorts)} == {State.COMPLETED}
        assert max(record.times.ended or 0 for record in shorts) < (long.times.ended or 0)

    def started(self) -> list[str]:
        file = self.workspace / "started.txt"
        return file.read_text().split() if file.exists() else []

    async def reserved(self) -> list[object]:
        """What workers have taken from the queue and do not run, as they say themselves, and as the broker knows."""
        told = await asyncio.to_thread(make_app(self.system.url).control.inspect(timeout=5).reserved)
        assert told, "no worker answered"
        with Redis.from_url(self.system.url) as raw:
            return [*(message for messages in told.values() for message in messages), *raw.hgetall("unacked")]


@pytest.mark.parametrize("kind", [Kind.SHELL, Kind.AGENT])
async def test_the_short_ones_end_while_the_long_one_runs(kind: Kind, system: Cluster, tmp_path: Path) -> None:
    async with Client.connect(system.url) as client:
        scene = Scene(system, client, tmp_path / "workspace")
        await asyncio.gather(system.coordinator(), system.worker("worker1"), system.worker("worker2"))
        job = await scene.submit(kind)
        await scene.shorts_end(job)
        assert await scene.reserved() == []
        assert (await scene.tasks(job))[0].lease is not None
        await scene.end(job)


async def test_what_a_busy_worker_does_not_run_waits_for_one_that_comes_later(system: Cluster, tmp_path: Path) -> None:
    async with Client.connect(system.url) as client:
        scene = Scene(system, client, tmp_path / "workspace")
        await asyncio.gather(system.coordinator(), system.worker("worker1"))
        job = await scene.submit(Kind.SHELL)
        await until(scene.started, what="the start of the long one")
        with Redis.from_url(system.url) as raw:
            await until(lambda: raw.llen(queue_for(Kind.SHELL)) >= SHORTS, what="the short ones in the queue")
        assert (await scene.reserved(), scene.started()) == ([], ["long"])
        await system.worker("worker2")
        await scene.shorts_end(job)
        await scene.end(job)


async def test_a_worker_that_dies_at_a_long_one_takes_nothing_along(system: Cluster, tmp_path: Path) -> None:
    async with Client.connect(system.url) as client:
        scene = Scene(system, client, tmp_path / "workspace")
        await asyncio.gather(system.coordinator(), system.worker("worker1"))
        job = await scene.submit(Kind.SHELL)
        await until(scene.started, what="the start of the long one")
        system.members["worker1"].kill()
        await system.worker("worker2")
        assert (await job.result()).state is State.COMPLETED
        long, *shorts = await scene.tasks(job)
        assert (long.state, {record.state for record in shorts}) == (State.FAILED, {State.COMPLETED})
        assert [record.fence for record in shorts] == [1] * SHORTS
        assert sorted(scene.started()) == ["long", *["short"] * SHORTS]
