"""`make bench`: one JSON line a benchmark on stdout, a table on stderr; ours and a plain program's, interleaved."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from celeriac.ops.bench.crowd import crowd
from celeriac.ops.bench.figures import HEADING, Figure
from celeriac.ops.bench.latencies import dispatch_latency, notify_latency
from celeriac.ops.bench.system import System, system
from celeriac.ops.bench.throughputs import agent_throughput, shell_throughput
from celeriac.ops.bench.turns import redis_calls, turn_cpu

FAMILIES: dict[str, Callable[[System], Awaitable[Sequence[Figure]]]] = {
    "dispatch_latency": dispatch_latency,
    "notify_latency": notify_latency,
    "agent_throughput": agent_throughput,
    "shell_throughput": shell_throughput,
    "turn_cpu": turn_cpu,
    "redis_calls_per_turn": redis_calls,
}
"""What is measured on one system, by the name that the command line takes."""
CROWD = "crowd"
"""The last one, on a system of its own."""


async def measure(names: Sequence[str]) -> AsyncGenerator[Figure, None]:
    """The figures of these families, each as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="celeriac-bench-") as folder:
        async with system(Path(folder)) as on:
            for name in names:
                for figure in await FAMILIES[name](on):
                    yield figure


async def show(names: Sequence[str]) -> list[Figure]:
    """Print the lines of these families, in their order."""
    figures: list[Figure] = []
    if alone := [name for name in FAMILIES if name in names]:
        async with aclosing(measure(alone)) as measured:
            async for figure in measured:
                print(figure.line(), flush=True)
                figures.append(figure)
    for figure in await crowd() if CROWD in names else ():
        print(figure.line(), flush=True)
        figures.append(figure)
    return figures


def main() -> int:
    """Run; 1 if a limit is missed."""
    every = [*FAMILIES, CROWD]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(every)}; default: all")
    names = parser.parse_args().names or every
    if unknown := set(names) - set(every):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    figures = asyncio.run(show(names))
    print("\n".join([HEADING, *(figure.row() for figure in figures)]), file=sys.stderr)
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
