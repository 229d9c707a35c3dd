"""Runs an example of ops/examples: its package's tests fail, a real job repairs it, its tests pass.

Server, coordinator and worker are real; the model's answers come from the example's replay.jsonl, so that no key,
service or root is needed.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.logs import configure
from celeriac.common.settings import Settings, environment
from celeriac.coordinator.commands.options import read_text, streams
from celeriac.coordinator.follow import OutputFormat
from celeriac.coordinator.jobs import JobOptions, TaskSummary, prepare
from celeriac.ops.run import LocalRun

JOB_SECONDS = 90.0
"""No example takes 20 s, even on a busy machine; a demonstration that hangs is a failed one."""


def main() -> int:
    """Run the example that the command line names; 1 if anything of it is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example", type=Path, help="its folder, with package/ and replay.jsonl")
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N", help="N agents must have worked at the same time"
    )
    arguments = parser.parse_args()
    if not (arguments.example / "package").is_dir():
        parser.error(f"{arguments.example} holds no package/: it is no example")
    try:
        with tempfile.TemporaryDirectory(prefix="celeriac-demo-") as folder:
            return demonstrate(arguments.example.resolve(), Path(folder), arguments.at_once)
    except CeleriacError as error:
        say(f"celeriac: {error}")
        return error.exit_code


def demonstrate(example: Path, folder: Path, wanted_at_once: int) -> int:
    """Copy the package to `folder`, show that its tests fail, run the job, show that they pass."""
    workspace = folder / "package"
    shutil.copytree(example / "package", workspace)
    environ = with_our_programs(environment())
    if tests_pass(workspace, environ, "before"):
        say("the example's package has no fault: nothing to demonstrate")
        return 1
    code, tasks = asyncio.run(run_job(example / "replay.jsonl", workspace, folder / "home", environ))
    enough = at_once(tasks) >= wanted_at_once
    if wanted_at_once > 1:
        say(f"agents at work at the same time, by their records: {at_once(tasks)}")
    passed = tests_pass(workspace, environ, "after")
    return code or (0 if passed and enough else 1)


async def run_job(
    replay: Path, workspace: Path, home: Path, environ: dict[str, str]
) -> tuple[int, Sequence[TaskSummary]]:
    """As `celeriac run` does it, with a home of its own; the exit code, and the agents."""
    settings = Settings(home=home)
    configure(settings, level="warning")
    options = JobOptions(cwd=workspace, replay=read_text(replay, "replay file"), replay_source=str(replay))
    local = LocalRun(settings, prepare(None, options, settings), OutputFormat.TEXT, streams(), environ)
    async with asyncio.timeout(JOB_SECONDS):
        code = await local.run()
    tasks = () if local.result is None else local.result.tasks
    return code, [task for task in tasks if task.task_id.startswith("a-")]


def at_once(tasks: Sequence[TaskSummary]) -> int:
    """The most of these tasks that ran at one moment."""
    spans = [(task.times.started, task.times.ended) for task in tasks]
    return max((sum(begun <= start < ended for begun, ended in spans) for start, _ in spans), default=0)


def with_our_programs(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, with our pytest first on PATH."""
    return {**environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{environ.get('PATH', os.defpath)}"}


def tests_pass(workspace: Path, environ: Mapping[str, str], when: str) -> bool:
    """Run the package's tests by plain pytest."""
    done = subprocess.run(["pytest", "-q"], cwd=workspace, env=environ, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or ["(no output)"]
    say(f"pytest {when}: {lines[-1]}")
    return done.returncode == 0


def say(line: str) -> None:
    """On stderr, where progress goes."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
