"""`make bench`: one JSON line a benchmark on stdout, a table on stderr; ours and a plain program's, interleaved."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from celeriac.ops.bench.figures import HEADING, Figure
from celeriac.ops.bench.latencies import dispatch_latency, notify_latency
from celeriac.ops.bench.system import System, system
from celeriac.ops.bench.throughputs import agent_throughput, shell_throughput
from celeriac.ops.bench.turns import redis_calls, turn_cpu


async def _alone(bench: Callable[[System], Awaitable[Figure]], on: System) -> list[Figure]:
    return [await bench(on)]


FAMILIES: dict[str, Callable[[System], Awaitable[list[Figure]]]] = {
    "dispatch_latency": lambda on: _alone(dispatch_latency, on),
    "notify_latency": lambda on: _alone(notify_latency, on),
    "agent_throughput": lambda on: _alone(agent_throughput, on),
    "shell_throughput": lambda on: _alone(shell_throughput, on),
    "turn_cpu": turn_cpu,
    "redis_calls_per_turn": lambda on: _alone(redis_calls, on),
}
"""By the name that the command line takes."""


async def measure(names: list[str]) -> list[Figure]:
    """Run these families on one system; each line is printed when it is known."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="celeriac-bench-") as folder:
        async with system(Path(folder)) as on:
            for name in names:
                for figure in await FAMILIES[name](on):
                    print(figure.line(), flush=True)
                    figures.append(figure)
    return figures


def main() -> int:
    """Run; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*FAMILIES, []], help="default: all")
    names = parser.parse_args().only or list(FAMILIES)
    figures = asyncio.run(measure(names))
    print("\n".join([HEADING, *(figure.row() for figure in figures)]), file=sys.stderr)
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
