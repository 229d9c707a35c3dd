"""`agent_throughput` and `shell_throughput`: tasks a second through one worker process, from the first dispatch to the
last end."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from celeriac.common.contract.json import JsonValue
from celeriac.common.substrate.types import NewTask
from celeriac.ops.bench.figures import Figure
from celeriac.ops.bench.model import TODO
from celeriac.ops.bench.system import System

PAIRS = 5
"""Issue A2: at least so many interleaved pairs."""
AGENTS, COMMANDS = 100, 60
"""Tasks of one sample: so many that starting up and ending weigh little, so few that all samples take a minute."""
COMMAND = "true"

Sample = Callable[[], Awaitable[float]]


async def agent_throughput(system: System) -> list[Figure]:
    """Agents of two turns a second; the baseline makes the same two model calls in a plain task's body."""
    ours = _ours(system, AGENTS, lambda: system.agent(TODO))
    raw = _plain(system, AGENTS, "agent", system.session.task_id, TODO, 2)
    return await _pairs("agent_throughput", "agents/s", ours, raw)


async def shell_throughput(system: System) -> list[Figure]:
    """Commands a second; the baseline runs the same command with subprocess in a plain task's body."""
    ours = _ours(system, COMMANDS, lambda: system.shell(COMMAND))
    return await _pairs("shell_throughput", "commands/s", ours, _plain(system, COMMANDS, "command", COMMAND))


def _ours(system: System, number: int, make: Callable[[], NewTask]) -> Sample:
    async def sample() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(system.dispatch(make()) for _ in range(number)))
        await system.ended(number)
        return number / (time.perf_counter() - started)

    return sample


def _plain(system: System, number: int, name: str, *arguments: JsonValue) -> Sample:
    def send() -> None:
        for _ in range(number):
            system.plain.send_task("work", [name, *arguments])

    async def sample() -> float:
        started = time.perf_counter()
        await asyncio.gather(asyncio.to_thread(send), system.plain_ended(number))
        return number / (time.perf_counter() - started)

    return sample


async def _pairs(name: str, unit: str, ours: Sample, baseline: Sample) -> list[Figure]:
    left, right = [], []
    await ours(), await baseline()  # the first round meets cold caches
    for _ in range(PAIRS):
        left.append(await ours())
        right.append(await baseline())
    return [Figure(name, unit, left, right)]
