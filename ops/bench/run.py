"""`make bench`: one JSON line a benchmark, ours and its raw baseline interleaved on the same server, then a table."""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import AgentSpec, Mode, Outcome, SessionSpec, State, Subtype
from celeriac.common.substrate.embedded import EmbeddedServer
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import NewTask

SAMPLES = 200
"""For latencies (issue A2)."""
DONE = Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text="done")

Sample = Callable[[], Awaitable[float]]


def _task(task_id: ids.TaskId, parent: ids.TaskId | None) -> NewTask:
    spec = SessionSpec(prompt="bench") if parent is None else AgentSpec(prompt="bench")
    return NewTask(
        task_id=task_id, kind=spec.kind, parent=parent, path="s", title="bench", spec=spec, mode=Mode.DEFAULT
    )


async def _owned(substrate: Substrate, task: NewTask, token: str | None, process: str) -> Lease:
    await substrate.records.create(task, parent_token=token)
    lease = await substrate.claim(task.task_id, None, process=process)
    assert isinstance(lease, Lease), lease
    return lease


async def notify(substrate: Substrate, session: Lease, number: int) -> float:
    """Seconds from a child's finish until the blocked reader of the parent's process has read the notification."""
    child_id = ids.child(session.task_id, Kind.AGENT, f"toolu_{number}")
    child = await _owned(substrate, _task(child_id, session.task_id), session.token, "worker")
    reading = asyncio.ensure_future(substrate.hints.wait("bench", sessions=False, timeout_s=5))
    await asyncio.sleep(0.002)  # the reader must be blocked before the clock starts
    started = time.perf_counter()
    await child.finish(DONE)
    assert await reading == session.task_id
    entries = await substrate.inboxes.unread(session.task_id)
    elapsed = time.perf_counter() - started
    await session.append([], consume=[entry.id for entry in entries], progress=False)
    return elapsed


async def raw_stream(client: Redis, blocked: Redis) -> float:
    """Seconds from XADD until a blocked XREAD has it."""
    reading = asyncio.ensure_future(blocked.xread({"bench": "$"}, block=5000))
    await asyncio.sleep(0.002)
    started = time.perf_counter()
    await client.xadd("bench", {"x": "1"})
    await reading
    return time.perf_counter() - started


async def interleaved(ours: Callable[[int], Awaitable[float]], baseline: Sample) -> tuple[list[float], list[float]]:
    """A B A B …"""
    left: list[float] = []
    right: list[float] = []
    for number in range(SAMPLES):
        left.append(await ours(number))
        right.append(await baseline())
    return left, right


def report(name: str, ours: list[float], baseline: list[float]) -> None:
    """The JSON line (milliseconds, medians) and a line for people."""
    mine, raw = statistics.median(ours) * 1000, statistics.median(baseline) * 1000
    line = {"bench": name, "ours": mine, "baseline": raw, "ratio": mine / raw, "unit": "ms", "n": len(ours)}
    samples = {"samples": {"ours": ours, "baseline": baseline}}
    print(orjson.dumps({**line, **samples}).decode())
    p95 = statistics.quantiles(ours, n=20)[-1] * 1000
    print(f"{name:20} {mine:8.2f} ms (p95 {p95:.2f})  raw {raw:.2f} ms  ratio {mine / raw:.2f}", file=sys.stderr)


async def main() -> None:
    """Run all on an embedded server."""
    with tempfile.TemporaryDirectory(prefix="celeriac-bench-") as folder:
        async with EmbeddedServer.start(Path(folder)) as server:
            substrate = Substrate.connect(server.url)
            client, blocked = Redis.from_url(server.url), Redis.from_url(server.url, socket_timeout=None)
            session = await _owned(substrate, _task(ids.new_session(), None), None, "bench")
            beating = asyncio.ensure_future(session.heartbeat())
            ours, raw = await interleaved(
                lambda number: notify(substrate, session, number), lambda: raw_stream(client, blocked)
            )
            beating.cancel()
            report("notify_latency", ours, raw)
            await asyncio.gather(client.aclose(), blocked.aclose(), substrate.aclose())


if __name__ == "__main__":
    asyncio.run(main())
