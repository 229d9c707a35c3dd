"""The server is killed and started again, over and over, under a fan-out: nothing is lost or doubled (PROTOCOL 9)."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.ops.chaos.checker import check
from celeriac.ops.chaos.crowd import Crowd, Load, submit

FAN_OUT = Load(agents=48, shells=12, shell_seconds=2.0)
RESTARTS = 10
LEASE_SECONDS = 6.0
"""Owners act for two thirds of it and renew every third: an outage below 2 s costs no lease."""
CONCURRENCY = 8
"""Tasks at once in each of two workers: the fan-out takes four waves, so that every restart hits running tasks."""
END_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart of the server, and what it hit."""

    ended: int
    """Tasks that had ended by then."""
    running: int
    """Tasks that were owned by workers."""
    down_s: float
    """From SIGKILL to the first answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the whole fan-out."""

    restarts: tuple[Restart, ...]
    faults: tuple[str, ...]
    messages: int
    """Messages that were sent to the session right at the kills, and accepted."""
    takeovers: int
    """Leases that were lost, over all tasks."""
    seconds: float


async def play(folder: Path, *, load: Load = FAN_OUT, restarts: int = RESTARTS) -> Outcome:
    """Play it with one job. Raises AssertionError if it does not end."""
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(cluster(folder, lease_seconds=LEASE_SECONDS, fsync="always"))
        await _start(system, load)
        client = await stack.enter_async_context(Client.connect(system.url))
        redis = await stack.enter_async_context(Redis.from_url(system.url, protocol=2))
        started = time.monotonic()
        crowd = await submit(system, client, redis, load, jobs=1)
        sent: list[str] = []
        hits = [await _restart(crowd, number, restarts, sent) for number in range(restarts)]
        await crowd.end(seconds=END_SECONDS)
        seconds = time.monotonic() - started
        faults = await check(crowd)
        takeovers = sum(record.fence - record.run for record in await crowd.tasks())
        return Outcome(tuple(hits), tuple(faults), len(sent), takeovers, seconds)


async def _start(system: Cluster, load: Load) -> None:
    system.environ["CELERIAC_WORKER_CONCURRENCY"] = str(CONCURRENCY)
    await system.standin(load.script())
    await asyncio.gather(system.coordinator(), system.worker("worker1"), system.worker("worker2"))
    system.refuse_shams()


async def _restart(crowd: Crowd, number: int, count: int, sent: list[str]) -> Restart:
    """Kill the server when its share of the tasks has ended and some run; a message is on its way meanwhile."""
    wanted = number * (crowd.load.tasks - CONCURRENCY) // count
    await crowd.progress(wanted, seconds=END_SECONDS)
    await until(crowd.running, seconds=END_SECONDS, what="running tasks")
    running, ended = await crowd.running(), await crowd.ended_tasks()
    sending = asyncio.create_task(crowd.jobs[0].send(f"Note {number}."))
    killed = time.monotonic()
    crowd.system.server.kill()
    await asyncio.to_thread(crowd.system.server.start)
    down_s = time.monotonic() - killed
    sent.append((await sending).status.value)
    return Restart(ended, len(running), down_s)
