"""Many sessions on two coordinators and two workers: one of each dies in the middle; and how long a session waits for a
claim."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from celeriac.common.testing import replies
from celeriac.common.testing.cluster import Cluster, Member, cluster
from celeriac.common.testing.replies import reply, say
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.checker import check
from celeriac.ops.chaos.crowd import Crowd, Load, submit

CROWD = Load(agents=3, shells=1, pace_ms=400)
SESSIONS = 50
LEASE_SECONDS = 6.0
"""Long enough that two busy cores keep leases alive, short enough that a test sees them run out."""
DEFAULT_LEASE_SECONDS = 15.0
"""The product's: hundreds of sessions that begin at one moment keep two cores busy for seconds."""
CONCURRENCY = 15
"""Tasks at once in each worker: the crowd takes several waves, so that the kills come in the middle."""
END_SECONDS = 150.0
CLAIM_SECONDS = 5.0
"""No session waits longer for its claim while a coordinator has room (issue A2)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the crowd."""

    killed: tuple[str, ...]
    """What died, and what it owned."""
    faults: tuple[str, ...]
    takeovers: int
    """Leases that were lost, over all sessions and tasks."""
    seconds: float


@asynccontextmanager
async def _system(folder: Path, script: str, **environ: str) -> AsyncIterator[tuple[Cluster, Client, Redis]]:
    """Two coordinators, two workers, a stand-in that plays the script; and two ways to look at them."""
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(cluster(folder, lease_seconds=LEASE_SECONDS))
        system.environ |= environ
        await system.standin(script)
        await asyncio.gather(*(system.coordinator(f"coordinator{n}") for n in (1, 2)))
        await asyncio.gather(*(system.worker(f"worker{n}") for n in (1, 2)))
        system.refuse_shams()
        client = await stack.enter_async_context(Client.connect(system.url))
        redis = await stack.enter_async_context(Redis.from_url(system.url, protocol=2))
        yield system, client, redis


async def play(folder: Path, *, load: Load = CROWD, sessions: int = SESSIONS) -> Outcome:
    """Submit, kill a coordinator and a worker in the middle, wait for the end, check. Raises AssertionError if a
    session does not end."""
    concurrency = {"CELERIAC_WORKER_CONCURRENCY": str(CONCURRENCY)}
    async with _system(folder, load.script(), **concurrency) as (system, client, redis):
        started = time.monotonic()
        crowd = await submit(system, client, redis, load, jobs=sessions)
        whole = sessions * load.tasks
        killed: list[str] = []
        for name, share in (("coordinator1", 0.25), ("worker1", 0.45)):
            await crowd.progress(round(whole * share), seconds=END_SECONDS)
            killed.append(await _kill(crowd, system.members[name]))
        await crowd.end(seconds=END_SECONDS)
        seconds = time.monotonic() - started
        faults = await check(crowd)
        takeovers = sum(record.fence - record.run for record in await crowd.tasks())
    return Outcome(tuple(killed), tuple(faults), takeovers, seconds)


async def _kill(crowd: Crowd, victim: Member) -> str:
    """SIGKILL it; its name and what it owned a moment before."""
    owned: list[str] = []

    async def owns() -> bool:
        leases = [record for record in await crowd.tasks() if record.lease and not record.state.terminal]
        owned[:] = [r.task_id for r in leases if r.lease and r.lease.process.startswith(f"{victim.name}@")]
        return bool(owned)

    await until(owns, seconds=END_SECONDS, what=f"{victim.name} owns something")
    victim.kill()
    return f"{victim.name} with {len(owned)} runs"


@dataclass(frozen=True, slots=True)
class Claims:
    """How long sessions that were submitted at once waited for their first owner, by the server's clock; seconds."""

    waits: tuple[float, ...]
    with_room: float
    """The longest that any of them waited at a stretch while a coordinator had room; the bound is 5 s."""
    most_at_once: int
    """The most sessions that had an owner at one time."""
    takeovers: int
    """Leases that were lost: 0 unless the processes are drowned."""

    @property
    def longest(self) -> float:
        """With or without room."""
        return max(self.waits)

    @property
    def median(self) -> float:
        """Of all of them."""
        return statistics.median(self.waits)


async def claims(folder: Path, *, sessions: int = 300, most: int = 500) -> Claims:
    """Submit so many sessions at once to two coordinators; `most`: how many each takes. Raises AssertionError if one
    does not end."""
    script = replies.script(reply("s", 1, say("A first word, slowly. " * 6), pace_ms=200), prompt="Say it.")
    environ = {"CELERIAC_COORDINATOR_SESSIONS": str(most), "CELERIAC_LEASE_SECONDS": str(DEFAULT_LEASE_SECONDS)}
    async with _system(folder, script, **environ) as (system, client, redis):
        workspace = JobOptions(cwd=folder)
        jobs = await asyncio.gather(*(client.submit("Say it.", workspace) for _ in range(sessions)))
        await Crowd(system, client, redis, Load(agents=0), tuple(jobs), folder).end(seconds=END_SECONDS)
        records = [await client.get(job.id) for job in jobs]
    times = [record.times for record in records]
    lives = [(each.created, each.started, each.ended) for each in times]
    return Claims(
        waits=tuple((started - created) / 1000 for created, started, _ in lives),
        with_room=longest_with_room(lives, 2 * most) / 1000,
        most_at_once=max(owned for _, owned in _owned(lives)),
        takeovers=sum(record.fence - record.run for record in records),
    )


def _owned(lives: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """From when on how many sessions have an owner, given when each was created, claimed and ended."""
    steps = sorted([(started, 1) for _, started, _ in lives] + [(ended, -1) for _, _, ended in lives])
    return list(zip((at for at, _ in steps), itertools.accumulate(step for _, step in steps), strict=True))


def longest_with_room(lives: Sequence[tuple[int, int, int]], places: int) -> int:
    """The longest that a session waited at a stretch while fewer than `places` had an owner; milliseconds."""
    longest = 0
    stretches: list[list[int]] = [[min(created for created, _, _ in lives), 0]]
    full = False
    for at, owned in _owned(lives):
        if not full and owned >= places:
            stretches[-1][1] = at
        elif full and owned < places:
            stretches.append([at, 0])
        full = owned >= places
    stretches[-1][1] = stretches[-1][1] or max(ended for _, _, ended in lives)
    for created, started, _ in lives:
        overlaps = (min(started, end) - max(created, begin) for begin, end in stretches)
        longest = max(longest, *overlaps, 0)
    return longest
