"""`make kill N=10`: every kill scenario N times with the default lease. Prints kind, pid, moment, recovery of each."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from celeriac.ops.chaos.scenarios import SCENARIOS, Kill, play

RECOVERY_LIMIT_SECONDS = 20.0
"""From SIGKILL to the next claim with the default lease of 15 s (issue A1)."""


async def rounds(count: int, lease_seconds: float) -> list[Kill]:
    """Play all scenarios `count` times, two at a time."""
    kills: list[Kill] = []
    gate = asyncio.Semaphore(2)

    async def one(number: int, index: int) -> None:
        async with gate:
            with tempfile.TemporaryDirectory(prefix="celeriac-kill-") as folder:
                kill = await play(SCENARIOS[index], Path(folder) / "run", lease_seconds=lease_seconds)
            kills.append(kill)
            print(f"{number + 1:3} {kill.kind:14} {kill.pid:8} {kill.moment:50} {kill.recovery_s:6.2f} s", flush=True)

    await asyncio.gather(*(one(number, index) for number in range(count) for index in range(len(SCENARIOS))))
    return kills


def main() -> int:
    """Run; 1 if a recovery took too long or nothing was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lease", type=float, default=15.0, help="seconds")
    arguments = parser.parse_args()
    kills = asyncio.run(rounds(arguments.rounds, arguments.lease))
    slowest = max((kill.recovery_s for kill in kills), default=0.0)
    print(f"{len(kills)} kills, slowest recovery {slowest:.2f} s (limit {RECOVERY_LIMIT_SECONDS} s)")
    return 0 if kills and slowest <= RECOVERY_LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
