"""C49: a message that is lost, late or doubled while workers come and go costs nothing: each task ends with one status
and is told once."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from redis import Redis

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

TASKS = 24
ROUNDS = 3
COMMAND = "echo {n} >> effect.txt; sleep 1.5"
QUEUES = ("a", "sh")


def job() -> tuple[str, tuple[str, ...]]:
    """Agents and shells by turns, and the rules that let them run."""
    commands = [COMMAND.format(n=n) for n in range(TASKS)]
    blocks: list[JsonObject] = []
    lines: list[JsonObject] = []
    for n, command in enumerate(commands):
        blocks.append(dispatch("sh", command=command) if n % 2 else dispatch("a", prompt="Run it."))
        lines += [reply(f"s/1.{n}", 1, use("Bash", command=command)), reply(f"s/1.{n}", 2, say("It was run."))]
    waits = [reply("s", turn, say("Waiting.")) for turn in range(2, TASKS + 4)]
    used = [line for line in lines if int(str(line["path"]).rpartition(".")[2]) % 2 == 0]
    return script(reply("s", 1, *blocks), *waits, *used), tuple(f"Bash({command})" for command in commands)


@pytest.mark.cluster
async def test_workers_that_end_in_any_way_lose_no_task(system: Cluster, tmp_path: Path) -> None:
    system.environ["CELERIAC_WORKER_CONCURRENCY"] = "3"
    await asyncio.gather(system.coordinator(), system.worker("worker0"), system.worker("worker1"))
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    effect = workspace / "effect.txt"
    replay, rules = job()
    async with Client.connect(system.url) as client:
        watched = Watched(
            client, await client.submit("Go.", JobOptions(cwd=workspace, allowed_tools=rules, replay=replay))
        )
        await until(effect.exists, what="the first command")
        alive = ["worker0", "worker1"]
        for number in range(ROUNDS):
            before = len(effect.read_text().split())
            await until(lambda before=before: len(effect.read_text().split()) > before, what="one more command")  # type: ignore[misc]  # a default binds the loop's value
            system.members[alive[0]].kill()
            system.members[alive[1]].signal(signal.SIGTERM)
            alive = [f"worker{2 * number + 2}", f"worker{2 * number + 3}"]
            await asyncio.gather(*(system.worker(name) for name in alive))
        await until(lambda: _terminal(watched), seconds=90, what="the job's end")
        await each_ended_once(watched)
        ran = effect.read_text()
        with Redis.from_url(system.url) as redis:
            deliver_again(redis)
            await until(lambda: not any(redis.llen(name) for name in QUEUES), what="empty queues")
            await until(lambda: not redis.hlen("unacked"), what="every late message answered")
        await each_ended_once(watched)
        assert effect.read_text() == ran


def deliver_again(redis: Redis) -> None:
    """What the broker does when the visibility timeout is over: what a killed worker had prefetched is sent again."""
    for tag, held in redis.hgetall("unacked").items():
        message, _, queue = json.loads(held)
        redis.hdel("unacked", tag)
        redis.zrem("unacked_index", tag)
        redis.rpush(queue, json.dumps(message))


async def _terminal(watched: Watched) -> bool:
    return (await watched.client.get(watched.job.id)).state.terminal


@pytest.mark.cluster
async def test_messages_that_vanish_from_the_queue_are_sent_again(system: Cluster, tmp_path: Path) -> None:
    await system.coordinator()
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    replay, rules = job()
    async with Client.connect(system.url) as client:
        watched = Watched(
            client, await client.submit("Go.", JobOptions(cwd=workspace, allowed_tools=rules, replay=replay))
        )
        with Redis.from_url(system.url) as redis:
            await until(lambda: sum(redis.llen(name) for name in QUEUES) >= TASKS, what="all messages")
            redis.delete(*QUEUES)
        await system.worker()
        await until(lambda: _terminal(watched), seconds=90, what="the job's end")
        await each_ended_once(watched)
        tasks = [one for one in await client.tree(watched.job.id) if one.kind is not Kind.SESSION]
        assert [one.state for one in tasks] == [State.COMPLETED] * TASKS
    assert sorted(int(word) for word in (workspace / "effect.txt").read_text().split()) == list(range(TASKS))


async def each_ended_once(watched: Watched) -> None:
    assert (await watched.job.result()).state is State.COMPLETED
    tasks = [one for one in await watched.client.tree(watched.job.id) if one.kind is not Kind.SESSION]
    assert len(tasks) == TASKS and all(one.state.terminal and one.run == 1 for one in tasks)
    told = {one.task_id: one.status for one in await watched.notified()}
    assert len(told) == len(await watched.notified()) == TASKS
    assert told == {one.task_id: "completed" if one.state is State.COMPLETED else "failed" for one in tasks}
