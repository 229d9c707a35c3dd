"""`turn_cpu_N` and `redis_calls_per_turn`: what one turn of one agent costs, and what it asks of the server."""

import asyncio
import statistics
import sys
from collections import Counter

from celeriac.ops.bench.figures import Figure
from celeriac.ops.bench.model import NOTES, READ_TURNS, READS, WRITE_TURNS, WRITES, Asked
from celeriac.ops.bench.seen import Command, seen
from celeriac.ops.bench.system import BASELINES, END_SECONDS, System

PAIRS = 5
"""Issue A2: at least so many interleaved pairs."""
AROUND = 24
"""`turn_cpu_N` is the mean of the turns N - 24 to N + 24 (issue A2)."""
LIMITS = {50: None, 100: 0.65, 400: 0.25}
"""Part of the baseline's cost that a turn may have, by turn (issue A2)."""
ALLOWED_CALLS = 3.0
"""One append, one draft and one tool_done for a turn with one state-changing call (INTERFACES)."""
NOT_COUNTED = frozenset({"renew", "emit"})
"""INTERFACES: these are not of the turn."""
FIRST_TURN = 10
"""From here on calls are counted: the start of a run has some of its own."""


async def turn_cpu(system: System) -> list[Figure]:
    """Milliseconds of CPU time a turn: the worker's process, and the plain loop's."""
    ours: list[dict[int, float]] = []
    plain: list[dict[int, float]] = []
    for number in range(PAIRS):
        ours.append(_costs(await _agent(system)))
        plain.append(_costs(await _loop(system, number)))
    return [_figure(turn, [cost[turn] for cost in ours], [cost[turn] for cost in plain]) for turn in LIMITS]


def _figure(turn: int, ours: list[float], plain: list[float]) -> Figure:
    part = LIMITS[turn]
    limit = part * statistics.median(plain) if part is not None else None
    return Figure(f"turn_cpu_{turn}", "ms/turn", ours, plain, limit)


def _costs(asked: dict[int, Asked]) -> dict[int, float]:
    """Milliseconds a turn around each N: from the request of the first turn to that of the one after the last."""
    turns = 2 * AROUND + 1
    return {
        turn: (asked[turn + AROUND + 1].cpu_seconds - asked[turn - AROUND].cpu_seconds) * 1000 / turns
        for turn in LIMITS
    }


async def _agent(system: System) -> dict[int, Asked]:
    system.model.watch(system.worker.pid)
    await system.dispatch(system.agent(READS, turns=READ_TURNS + 1))
    await system.ended(1)
    return system.model.asked


async def _loop(system: System, number: int) -> dict[int, Asked]:
    arguments = (system.model.url, f"plain-{number}", READS, str(READ_TURNS), str(system.folder / NOTES))
    process = await asyncio.create_subprocess_exec(sys.executable, str(BASELINES / "sdk_loop.py"), *arguments)
    system.model.watch(process.pid)
    async with asyncio.timeout(END_SECONDS):
        code = await process.wait()
    assert code == 0, f"the plain loop ended with {code}"
    return system.model.asked


async def redis_calls(system: System) -> list[Figure]:
    """Calls a turn of an agent that makes one state-changing call (a Write) each turn."""
    system.model.watch(system.worker.pid)
    async with seen(system.redis) as told:
        task_id = await system.dispatch(system.agent(WRITES, turns=WRITE_TURNS + 1))
        await system.ended(1)
        commands = told.about(task_id)
    asked = system.model.asked
    turns = range(FIRST_TURN, WRITE_TURNS)
    counts = [_between(commands, asked[turn].at, asked[turn + 1].at) for turn in turns]
    print(f"redis calls of {len(counts)} turns: {dict(sum(counts, Counter()))}", file=sys.stderr)
    unit = f"calls/turn (all about the task, without {' and '.join(sorted(NOT_COUNTED))})"
    ours = [float(count.total()) for count in counts]
    return [Figure("redis_calls_per_turn", unit, ours, [ALLOWED_CALLS] * len(ours), ALLOWED_CALLS)]


def _between(commands: list[Command], start: float, end: float) -> "Counter[str]":
    return Counter(each.name for each in commands if start <= each.at < end and each.name not in NOT_COUNTED)
