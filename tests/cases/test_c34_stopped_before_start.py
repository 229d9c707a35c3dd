"""C34: a task that was stopped before it started never starts, whatever restarts, comes late or was reserved: the stop
is kept with the task, not in the memory of whoever was up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.coordinator.stopping import StopVerdict
from celeriac.ops.chaos.watched import Watched

FIRST = "echo begun >> first.txt; until [ -e go ]; do sleep 0.1; done"
SECOND = "echo begun >> second.txt"
RULES = (f"Bash({FIRST})", f"Bash({SECOND})")


def of_kind(kind: str, *, with_first: bool) -> str:
    """A job that dispatches `SECOND` as an agent's or a shell's command, after one that keeps the only slot busy."""
    second = dispatch("sh", command=SECOND) if kind == "sh" else dispatch("a", prompt="Second.")
    blocks = [dispatch("a", prompt="First."), second] if with_first else [second]
    return script(
        reply("s", 1, *blocks),
        *(reply("s", turn, say("Waiting.")) for turn in (2, 3, 4)),
        reply("s/1.0", 1, use("Bash", command=FIRST if with_first else SECOND)),
        reply("s/1.0", 2, say("It was run.")),
        reply("s/1.1", 1, use("Bash", command=SECOND)),
        reply("s/1.1", 2, say("It was run.")),
    )


@asynccontextmanager
async def job_of(system: Cluster, workspace: Path, replay: str) -> AsyncIterator[Watched]:
    await asyncio.to_thread(workspace.mkdir)
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=workspace, allowed_tools=RULES, replay=replay)
        yield Watched(client, await client.submit("Go.", options))


async def queued(watched: Watched, kind: str, number: int) -> Record:
    """The job's task number `number` of this kind, once its message was sent."""

    async def found() -> list[Record]:
        tree = await watched.client.tree(watched.job.id)
        return [
            one
            for one in tree
            if one.kind is Kind(kind) and one.state is State.QUEUED and one.path.endswith(f".{number}")
        ]

    await until(found, what="a queued task")
    return (await found())[0]


async def stopped(watched: Watched, task: Record) -> None:
    (line,) = await watched.client.stop(task.task_id, "not needed")
    assert line.verdict is StopVerdict.STOPPED
    assert (await watched.client.get(task.task_id)).state is State.STOPPED


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["a", "sh"])
async def test_nobody_was_up(system: Cluster, tmp_path: Path, kind: str) -> None:
    await system.coordinator()
    async with job_of(system, tmp_path / "workspace", of_kind(kind, with_first=False)) as watched:
        task = await queued(watched, kind, 0)
        with Redis.from_url(system.url) as redis:
            assert redis.llen(kind) >= 1
            await stopped(watched, task)
            await system.worker()
            await until(lambda: not redis.llen(kind), what="a worker that took the message")
        assert (await watched.end()).state is State.COMPLETED
        assert [(one.task_id, one.status) for one in await watched.notified()] == [(task.task_id, "killed")]
        ended = await watched.client.get(task.task_id)
        assert (ended.state, ended.fence) == (State.STOPPED, 0)
    assert not (tmp_path / "workspace" / "second.txt").exists()


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["a", "sh"])
async def test_the_only_slot_was_busy_and_the_worker_is_killed(system: Cluster, tmp_path: Path, kind: str) -> None:
    system.environ["CELERIAC_WORKER_CONCURRENCY"] = "1"
    await asyncio.gather(system.coordinator(), system.worker("worker1"))
    workspace = tmp_path / "workspace"
    async with job_of(system, workspace, of_kind(kind, with_first=True)) as watched:
        await until((workspace / "first.txt").exists, what="the first task's start")
        task = await queued(watched, kind, 1)
        await stopped(watched, task)
        system.members["worker1"].kill()
        await system.worker("worker2")
        (workspace / "go").touch()
        assert (await watched.end()).state is State.COMPLETED
        told = {one.task_id: one.status for one in await watched.notified()}
        assert told.pop(task.task_id) == "killed" and list(told.values()) == ["completed"]
        ended = await watched.client.get(task.task_id)
        assert (ended.state, ended.fence) == (State.STOPPED, 0)
    assert not (workspace / "second.txt").exists()
