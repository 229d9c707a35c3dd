"""Worse weather than a clean restart: the server twice in a second, or frozen for longer than a lease; no coordinator
left; everybody told to end at once."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from redis.asyncio import Redis

from celeriac.common.testing.cluster import ROLES, cluster
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.ops.chaos.checker import check
from celeriac.ops.chaos.crowd import Crowd, Load, submit

LOAD = Load(agents=4, shells=1, pace_ms=400, shell_seconds=3.0)
JOBS = 4
LEASE_SECONDS = 3.0
FROZEN_SECONDS = 5.0
"""Longer than the lease: every owner has given up by then."""
END_SECONDS = 120.0

Attack = Callable[[Crowd], Awaitable[None]]


async def play(folder: Path, attack: Attack) -> list[str]:
    """Attack a small crowd when all of its tasks have begun; the faults afterwards. Raises AssertionError if it does
    not end."""
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(cluster(folder, lease_seconds=LEASE_SECONDS, fsync="always"))
        await system.standin(LOAD.script())
        await asyncio.gather(*(system.coordinator(f"coordinator{n}") for n in (1, 2)))
        await asyncio.gather(*(system.worker(f"worker{n}") for n in (1, 2)))
        system.refuse_shams()
        client = await stack.enter_async_context(Client.connect(system.url))
        redis = await stack.enter_async_context(Redis.from_url(system.url, protocol=2))
        crowd = await submit(system, client, redis, LOAD, jobs=JOBS)

        async def begun() -> bool:
            return len(await crowd.running()) >= LOAD.tasks * JOBS // 2

        await until(begun, seconds=END_SECONDS, what="half of all tasks running")
        await attack(crowd)
        await crowd.end(seconds=END_SECONDS)
        return await check(crowd)


async def two_restarts_in_a_second(crowd: Crowd) -> None:
    """The second comes while everybody is busy with reconnecting."""
    for _ in range(2):
        crowd.system.server.kill()
        await asyncio.to_thread(crowd.system.server.start)


async def frozen_for_longer_than_a_lease(crowd: Crowd) -> None:
    """Nothing is refused, nothing is answered."""
    crowd.system.server.signal(signal.SIGSTOP)
    await asyncio.sleep(FROZEN_SECONDS)
    crowd.system.server.signal(signal.SIGCONT)


async def away_for_longer_than_a_lease(crowd: Crowd) -> None:
    """Every connection is refused for as long."""
    crowd.system.server.kill()
    await asyncio.sleep(FROZEN_SECONDS)
    await asyncio.to_thread(crowd.system.server.start)


async def all_coordinators_killed(crowd: Crowd) -> None:
    """One is started afterwards, and knows nothing."""
    for name in ("coordinator1", "coordinator2"):
        crowd.system.members[name].kill()
    await crowd.system.coordinator("coordinator3")


async def everybody_told_to_end(crowd: Crowd) -> None:
    """All coordinators and workers at once get SIGTERM; others are started meanwhile."""
    old = [member for name, member in crowd.system.members.items() if name.startswith(ROLES)]
    for member in old:
        member.signal(signal.SIGTERM)
    await asyncio.gather(crowd.system.coordinator("coordinator3"), crowd.system.worker("worker3"))
    await until(lambda: all(member.process.poll() == 0 for member in old), what="the ends of all that were told")


ATTACKS: tuple[Attack, ...] = (
    two_restarts_in_a_second,
    frozen_for_longer_than_a_lease,
    away_for_longer_than_a_lease,
    all_coordinators_killed,
    everybody_told_to_end,
)
