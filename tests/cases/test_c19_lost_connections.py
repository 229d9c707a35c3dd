"""C19: a worker, a coordinator or a client whose connections drop and come back goes on working; being alive is not
enough."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from celeriac.common.contract.task import State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

COMMAND = "echo begun >> effect.txt; until [ -e go ]; do sleep 0.1; done; echo done >> effect.txt"
SCRIPT = script(
    reply("s", 1, dispatch("a", prompt="Run it.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, say("All done.")),
    reply("s/1.0", 1, use("Bash", command=COMMAND)),
    reply("s/1.0", 2, say("It was run.")),
)
TIMES = 3


async def clients_cut(system: Cluster) -> None:
    """Every connection, those that wait for messages and for events among them."""
    async with Redis.from_url(system.url, protocol=2) as redis:
        for _ in range(TIMES):
            for kind in ("normal", "pubsub"):
                await redis.client_kill_filter(_type=kind, skipme=True)
            await until(lambda: _connected(redis), seconds=10, what="somebody who came back")


async def _connected(redis: Redis) -> bool:
    return int((await redis.info("clients"))["connected_clients"]) > 1


async def server_restarted(system: Cluster) -> None:
    for _ in range(TIMES):
        await asyncio.to_thread(system.server.kill)
        await asyncio.to_thread(system.server.start)


FAULTS: dict[str, Callable[[Cluster], Awaitable[None]]] = {"cut": clients_cut, "restarted": server_restarted}


@pytest.mark.cluster
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_is_sent_afterwards_starts_and_what_ran_meanwhile_ends(
    system: Cluster, tmp_path: Path, fault: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for workspace in (first, second):
        await asyncio.to_thread(workspace.mkdir)
    (second / "go").touch()
    coordinator, worker = await asyncio.gather(system.coordinator(), system.worker())
    await FAULTS[fault](system)  # while idle
    async with Client.connect(system.url) as client:
        options = JobOptions(allowed_tools=(f"Bash({COMMAND})",), replay=SCRIPT)
        running = Watched(client, await client.submit("Go.", options.model_copy(update={"cwd": first})))
        await until((first / "effect.txt").exists, seconds=30, what="a task that was sent after the fault")
        await FAULTS[fault](system)  # while it runs, and the client is connected
        later = Watched(client, await client.submit("Go.", options.model_copy(update={"cwd": second})))
        await until((second / "effect.txt").exists, seconds=30, what="a task that was sent after the second fault")
        (first / "go").touch()
        for each in (running, later):
            assert (await each.end()).state is State.COMPLETED
            assert [one.status for one in await each.notified()] == ["completed"]
    for workspace in (first, second):
        assert (workspace / "effect.txt").read_text().split() == ["begun", "done"]
    assert coordinator.process.poll() is None and worker.process.poll() is None
