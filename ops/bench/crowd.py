"""`make crowd`: 300 agents at once in one worker process, each with a stream open: its memory and its loop's lag.

There is no plain program to compare with: the line's baseline is the limit for the memory, and for the lag the same
process without agents.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from celeriac.common.testing.cluster import Cluster, Member
from celeriac.common.testing.waiting import until
from celeriac.ops.bench.figures import HEADING, Figure, percentile
from celeriac.ops.bench.model import PACED
from celeriac.ops.bench.system import System, script, system

AGENTS = 300
"""Issue A2."""
MEMORY_LIMIT_MIB = 500.0
"""Issue A2."""
IDLE_SECONDS, WATCHED_SECONDS = 5.0, 10.0
"""How long the loop is watched before the crowd, and while every agent of it streams."""
OBSERVED_WORKER = Path(__file__).with_name("observed_worker.py")


async def crowd() -> list[Figure]:
    """Run it on a system of its own."""
    with tempfile.TemporaryDirectory(prefix="celeriac-crowd-") as name:
        lags = Path(name) / "lags.txt"

        async def observed(processes: Cluster) -> Member:
            processes.environ["CELERIAC_WORKER_CONCURRENCY"] = str(AGENTS)
            return await script(processes, "worker", OBSERVED_WORKER, str(lags), ready="worker ready")

        async with system(Path(name), observed) as on:
            return await _measured(on, lags)


async def _measured(on: System, lags: Path) -> list[Figure]:
    await asyncio.sleep(IDLE_SECONDS)
    idle = _lags(lags, time.monotonic() - IDLE_SECONDS, time.monotonic())
    await asyncio.gather(*(on.dispatch(on.agent(PACED)) for _ in range(AGENTS)))
    await until(lambda: on.model.answered >= AGENTS, seconds=60, what=f"{AGENTS} streams")
    started, memory = time.monotonic(), []
    while time.monotonic() < started + WATCHED_SECONDS:
        memory.append(resident_mib(on.worker.pid))
        await asyncio.sleep(1)
    busy = _lags(lags, started, started + WATCHED_SECONDS)
    still = AGENTS - (await on.session.renew()).unread
    assert still == AGENTS, f"only {still} agents streamed until the end of the watch"
    await on.ended(AGENTS)
    return [
        Figure("crowd_memory", "MiB", [max(memory)], [MEMORY_LIMIT_MIB], MEMORY_LIMIT_MIB),
        Figure("crowd_loop_lag", "ms (p99)", [percentile(busy, 0.99)], [percentile(idle, 0.99)]),
    ]


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _lags(file: Path, start: float, end: float) -> list[float]:
    """The lags between these times; the last line may be incomplete."""
    notes = (line.split() for line in file.read_text(encoding="ascii").splitlines()[:-1])
    return [float(lag) for at, lag in notes if start <= float(at) <= end]


def main() -> int:
    """Run; 1 if the limit is missed."""
    figures = asyncio.run(crowd())
    for figure in figures:
        print(figure.line())
    print("\n".join([HEADING, *(figure.row() for figure in figures)]), file=sys.stderr)
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
