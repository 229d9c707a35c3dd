"""`dispatch_latency` and `notify_latency`: the other side knows, against the bare queue and the bare stream."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from celeriac.common.contract import ids
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Outcome, State, Subtype
from celeriac.common.substrate.leases import Lease
from celeriac.ops.bench.baselines.raw_stream import BLOCKED_SECONDS, RawStream
from celeriac.ops.bench.figures import Figure
from celeriac.ops.bench.model import DONE
from celeriac.ops.bench.seen import seen
from celeriac.ops.bench.system import PROCESS, System

SAMPLES = 200
"""Issue A2: at least so many for latencies."""
WARM = 5
"""Samples before them, which meet cold caches and are not counted."""
DISPATCH_MARGIN_MS = 12.0
"""Over the raw submit, at the median (issue A2)."""
NOTIFY_FACTOR = 15.0
"""Times the raw stream, at the median (issue A2)."""
ENDED = Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text="done")

Sample = Callable[[], Awaitable[float]]


async def interleaved(ours: Sample, baseline: Sample, *, samples: int) -> tuple[list[float], list[float]]:
    """A B A B …"""
    left, right = [], []
    for number in range(WARM + samples):
        mine, raw = await ours(), await baseline()
        if number >= WARM:
            left.append(mine)
            right.append(raw)
    return left, right


async def dispatch_latency(system: System) -> list[Figure]:
    """Milliseconds from the start of a dispatch until the worker has the claim's answer and begins the run."""
    async with seen(system.redis) as told:

        async def ours() -> float:
            task = system.agent(DONE)
            started = time.time()
            await system.dispatch(task)
            begun = await told.answered("claim", task.task_id)
            await system.ended(1)
            return (begun - started) * 1000

        async def raw() -> float:
            started = time.time()
            system.plain.send_task("work", ["start"])
            (begun,) = await system.plain_ended(1)
            return (float(begun) - started) * 1000

        mine, bare = await interleaved(ours, raw, samples=SAMPLES)
    return [Figure("dispatch_latency", "ms", mine, bare, limit=statistics.median(bare) + DISPATCH_MARGIN_MS)]


async def notify_latency(system: System) -> list[Figure]:
    """Milliseconds from a child's finish until its parent's process has read the notification."""
    stream = RawStream(system.processes.url)

    async def ours() -> float:
        return await _notified(system) * 1000

    async def raw() -> float:
        return await stream.sample() * 1000

    mine, bare = await interleaved(ours, raw, samples=SAMPLES)
    await stream.aclose()
    return [Figure("notify_latency", "ms", mine, bare, limit=statistics.median(bare) * NOTIFY_FACTOR)]


async def _notified(system: System) -> float:
    session, substrate = system.session, system.substrate
    task_id = ids.child(session.task_id, Kind.AGENT, ids.nonce())
    task = system.agent(DONE).model_copy(update={"task_id": task_id})
    await substrate.records.create(task, parent_token=session.token)
    child = await substrate.claim(task_id, None, process="child")
    assert isinstance(child, Lease), child
    reading = asyncio.ensure_future(substrate.hints.wait(PROCESS, sessions=False, timeout_s=5))
    await asyncio.sleep(BLOCKED_SECONDS)  # the reader must be blocked before the clock starts
    started = time.perf_counter()
    await child.finish(ENDED)
    assert await reading == session.task_id
    entries = await substrate.inboxes.unread(session.task_id)
    elapsed = time.perf_counter() - started
    await session.append([], consume=[entry.id for entry in entries], progress=False)
    return elapsed
