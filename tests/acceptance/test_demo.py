"""`make demo`, and what happens when its replay file does not fit (issue A1, What must be shown)."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from celeriac.common.testing.command import CommandLine, Said

EXAMPLES = Path(__file__).parents[2] / "ops" / "examples"
EXAMPLE = EXAMPLES / "fix-a-bug"
REPLAY = (EXAMPLE / "replay.jsonl").read_text()
SCRIPTS = sysconfig.get_path("scripts")


def plain_pytest_passes(workspace: Path) -> bool:
    """By plain pytest."""
    return subprocess.run([f"{SCRIPTS}/pytest", "-q"], cwd=workspace, capture_output=True, check=False).returncode == 0


def demonstrate(example: Path, tmp_path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """As `make` does it; nothing of it may be left, no file and no process."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        environment.pop(name, None)
    command = [sys.executable, "-P", "-m", "celeriac.ops.demo", str(example), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("celeriac")]
    left = [at for at in Path("/proc").glob("[0-9]*/environ") if f"TMPDIR={tmp_path}\0".encode() in environ_of(at)]
    assert not left
    return done


def tree_of(stderr: str) -> list[list[str]]:
    """The words of each task's last line."""
    return [line.split() for line in stderr.splitlines() if " tokens  " in line]


def test_the_demo_runs_a_whole_job_and_leaves_nothing(tmp_path: Path) -> None:
    done = demonstrate(EXAMPLE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The tests pass now: 4 passed")
    tree = tree_of(done.stderr)
    assert [line[0] for line in tree] == ["s", "sh", "a"]
    assert tree[2][3:5] == ["2", "runs"] and all(line[1].startswith(f"{line[0]}-") for line in tree)
    assert "pytest before: 1 failed, 3 passed" in done.stderr and "pytest after: 4 passed" in done.stderr
    assert "total: " in done.stderr


def test_eight_agents_work_at_the_same_time_and_the_coordinator_sums_up(tmp_path: Path) -> None:
    done = demonstrate(EXAMPLES / "fan-out", tmp_path, "--at-once", "8")
    assert done.returncode == 0, done.stderr
    assert "9 passed" in done.stdout and done.stdout.count("\n- ") == 8
    tree = tree_of(done.stderr)
    assert [line[0] for line in tree] == ["s", *["a"] * 8, "sh"] and len({line[1] for line in tree}) == 10
    notified = [line.split() for line in done.stderr.splitlines() if "notification: [a-" in line]
    assert [words[3] for words in notified] == ["completed]"] * 8
    assert {words[2].strip("[") for words in notified} == {line[1] for line in tree[1:9]}
    assert "pytest before: 8 failed, 1 passed" in done.stderr and "pytest after: 9 passed" in done.stderr
    assert "agents at work at the same time, by their records: 8" in done.stderr


def test_an_example_without_its_parts_is_refused_in_words(tmp_path: Path) -> None:
    done = demonstrate(tmp_path, tmp_path)
    assert done.returncode == 2 and "it is no example" in done.stderr
    shutil.copytree(EXAMPLE / "package", tmp_path / "package")
    done = demonstrate(tmp_path, tmp_path)
    assert done.returncode == 2 and "replay.jsonl" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("fault", ["no fault to begin with", "too few agents"])
def test_a_demonstration_that_shows_nothing_fails(fault: str, tmp_path: Path) -> None:
    example = tmp_path / "example"
    shutil.copytree(EXAMPLE, example)
    if fault == "too few agents":
        done = demonstrate(example, tmp_path, "--at-once", "2")
        assert "by their records: 1" in done.stderr and "pytest after: 4 passed" in done.stderr
    else:
        (example / "package" / "tests" / "test_order.py").write_text("def test_nothing() -> None: ...\n")
        done = demonstrate(example, tmp_path)
        assert "nothing to demonstrate" in done.stderr
    assert done.returncode == 1


def environ_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def without_line(number: int) -> Callable[[str], str]:
    return lambda text: "".join(line for at, line in enumerate(text.splitlines(keepends=True), 1) if at != number)


def with_a_wrong_edit(text: str) -> str:
    return text.replace("if self.quantity >= DISCOUNT_FROM:", "if self.quantity == DISCOUNT_FROM:")


def with_one_line_more(text: str) -> str:
    return text + text.splitlines()[-1].replace('"turn": 7', '"turn": 9') + "\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_a_wrong_edit, ["replay diverged at s/3.1 run 2 turn 2", "4 passed"]),
        (without_line(7), ["replay has no answer for s/3.1 run 1 turn 2"]),
        (without_line(13), ["replay has no answer for s run 1 turn 7"]),
        (with_one_line_more, ["line 14: s run 1 turn 9 was not asked"]),
    ],
)
def test_a_replay_that_does_not_fit_is_reported(change: Callable[[str], str], words: list[str], tmp_path: Path) -> None:
    workspace = tmp_path / "package"
    shutil.copytree(EXAMPLE / "package", workspace)
    assert not plain_pytest_passes(workspace)
    replay = tmp_path / "replay.jsonl"
    replay.write_text(change(REPLAY))
    assert replay.read_text() != REPLAY
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    line = CommandLine(tmp_path, {"HOME": str(tmp_path), "CELERIAC_HOME": str(tmp_path / "home"), "PATH": path})
    said: Said = line.run("run", "--replay", str(replay), "--cwd", str(workspace))
    assert said.code == 1
    for word in words:
        assert word in said.err, said.err
