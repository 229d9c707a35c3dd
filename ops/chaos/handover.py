"""SIGTERM for a coordinator and a worker while agents stream: their runs go on elsewhere, and none counts as lost."""

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.testing.cluster import Member, cluster
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.ops.chaos.checker import check
from celeriac.ops.chaos.crowd import Crowd, Load, submit

LOAD = Load(agents=5, shells=1, pace_ms=700, shell_seconds=4.0)
JOBS = 4
LEASE_SECONDS = 15.0
"""The default: whatever goes on sooner was handed over, not taken over."""
END_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class HandOver:
    """One process that was told to end."""

    name: str
    runs: int
    """What it owned when it was told."""
    moved_s: float
    """Until the last of its sessions or agents had its next owner."""
    exit_s: float
    """Until its process had ended."""
    exit_code: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the jobs."""

    hand_overs: tuple[HandOver, ...]
    faults: tuple[str, ...]
    attempts: int
    """Counted attempts over all tasks: a hand-over is none."""


async def play(folder: Path, *, load: Load = LOAD, jobs: int = JOBS) -> Outcome:
    """Play it. Raises AssertionError if a job does not end."""
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(cluster(folder, lease_seconds=LEASE_SECONDS, scan_seconds=1.0))
        await system.standin(load.script())
        old = await asyncio.gather(system.coordinator("coordinator1"), system.worker("worker1"))
        client = await stack.enter_async_context(Client.connect(system.url))
        redis = await stack.enter_async_context(Redis.from_url(system.url, protocol=2))
        crowd = await submit(system, client, redis, load, jobs=jobs)
        await until(lambda: _streaming(crowd), seconds=END_SECONDS, what="all agents stream, all commands run")
        await asyncio.gather(system.coordinator("coordinator2"), system.worker("worker2"))
        system.refuse_shams()
        told = [await _hand_over(crowd, member) for member in old]
        await crowd.end(seconds=END_SECONDS)
        faults = await check(crowd)
        attempts = sum(record.attempt for record in await crowd.tasks())
    return Outcome(tuple(told), tuple(faults), attempts)


async def _streaming(crowd: Crowd) -> bool:
    tasks = [record for record in await crowd.tasks() if record.parent]
    busy = [record for record in tasks if record.state in {State.PRODUCING_OUTPUT, State.RUNNING} and record.tlen]
    return len(busy) == crowd.load.tasks * len(crowd.jobs)


async def _hand_over(crowd: Crowd, member: Member) -> HandOver:
    """SIGTERM; wait until everything that could move has moved, and the process is gone."""
    before = {record.task_id: record for record in await crowd.tasks() if _owner(record) == member.name}
    movable = {task_id: record for task_id, record in before.items() if record.kind is not Kind.SHELL}
    assert movable, f"{member.name} owned nothing"
    told = time.monotonic()
    member.signal(signal.SIGTERM)

    async def moved() -> bool:
        now = {record.task_id: record for record in await crowd.tasks()}
        return all(now[each].state.terminal or now[each].fence > record.fence for each, record in movable.items())

    await until(moved, seconds=END_SECONDS, what=f"the next owners of what {member.name} had")
    moved_s = time.monotonic() - told
    await until(lambda: member.process.poll() is not None, seconds=END_SECONDS, what=f"the end of {member.name}")
    return HandOver(member.name, len(before), moved_s, time.monotonic() - told, int(member.process.returncode))


def _owner(record: Record) -> str:
    return record.lease.process.partition("@")[0] if record.lease is not None else ""
