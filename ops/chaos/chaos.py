"""`make chaos`: restarts under a fan-out, a crowd that loses processes, fair claims, hand-overs, worse
weather. Prints the figures."""

import asyncio
import sys
import tempfile
from pathlib import Path

from celeriac.ops.chaos import attacks, handover, many, restarts


async def show_restarts(folder: Path) -> int:
    """Ten restarts of the server under 60 tasks; the number of faults."""
    outcome = await restarts.play(folder)
    for number, hit in enumerate(outcome.restarts, start=1):
        print(f"  restart {number:2}: {hit.ended:2} ended, {hit.running:2} running, down {hit.down_s:.2f} s")
    print(f"  {outcome.messages} messages accepted, {outcome.takeovers} takeovers, {outcome.seconds:.1f} s")
    return _faults(outcome.faults)


async def show_crowd(folder: Path) -> int:
    """50 sessions, 200 tasks, a coordinator and a worker killed; the number of faults."""
    outcome = await many.play(folder)
    print(f"  killed: {', '.join(outcome.killed)}; {outcome.takeovers} takeovers, {outcome.seconds:.1f} s")
    return _faults(outcome.faults)


async def show_claims(folder: Path) -> int:
    """300 sessions at once, with room for all and with room for 80; the number of broken bounds."""
    broken = 0
    for most in (500, 40):
        found = await many.claims(folder / f"{most}", sessions=300, most=most)
        print(
            f"  {most} a process: longest wait {found.longest:.2f} s, median {found.median:.2f} s, "
            f"longest with room {found.with_room:.2f} s, {found.most_at_once} at once, {found.takeovers} takeovers"
        )
        broken += found.with_room > many.CLAIM_SECONDS
    return broken


async def show_hand_overs(folder: Path) -> int:
    """SIGTERM for a coordinator and a worker while agents stream; the number of faults."""
    outcome = await handover.play(folder)
    for told in outcome.hand_overs:
        print(f"  {told.name}: {told.runs} runs, moved in {told.moved_s:.2f} s, ended in {told.exit_s:.2f} s")
    print(f"  {outcome.attempts} attempts counted")
    return _faults(outcome.faults) + outcome.attempts


async def show_attacks(folder: Path) -> int:
    """Worse weather; the number of faults."""
    faults = 0
    for attack in attacks.ATTACKS:
        print(f"  {attack.__name__.replace('_', ' ')}", flush=True)
        faults += _faults(tuple(await attacks.play(folder / attack.__name__, attack)))
    return faults


def _faults(faults: tuple[str, ...]) -> int:
    for fault in faults:
        print(f"  FAULT {fault}")
    return len(faults)


SHOWS = {
    "restarts": show_restarts,
    "crowd": show_crowd,
    "claims": show_claims,
    "hand-overs": show_hand_overs,
    "attacks": show_attacks,
}


def main(names: list[str]) -> int:
    """Show these, or all; 1 if anything was wrong."""
    wrong = 0
    for name in names or list(SHOWS):
        with tempfile.TemporaryDirectory(prefix="celeriac-chaos-") as folder:
            print(f"{name}:", flush=True)
            wrong += asyncio.run(SHOWS[name](Path(folder)))
    print("no faults" if not wrong else f"{wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
