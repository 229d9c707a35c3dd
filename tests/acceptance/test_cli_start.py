"""What the command line loads: little, and never from the folder where it is started."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from celeriac.common.testing.command import CELERIAC, CommandLine

HEAVY = ("celery", "kombu", "anthropic", "flower", "tornado", "rich")
DECOYS = ("common", "coordinator", "workers", "ops")
HELP_CPU_SECONDS = 0.25
LIST_RATIO = 1.3
TRIES = 5
"""The best of so many: other load on the machine only ever adds."""


def modules(cwd: Path, *arguments: str) -> set[str]:
    """Names of all modules that the command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(CELERIAC), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def cpu_seconds(*command: str) -> float:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    best = float("inf")
    for _ in range(TRIES):
        before = spent()
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        best = min(best, spent() - before)
    return best


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list", "--redis-url", "redis://127.0.0.1:1/0"], ["completion", "bash"], ["logs"], ["up", "--help"]],
)
def test_what_people_call_often_loads_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    loaded = modules(tmp_path, *arguments)
    assert "celeriac.cli" in loaded
    heavy = {*HEAVY, *(() if arguments[0] == "up" else ("pydantic",))}
    assert not {name for name in loaded if name.partition(".")[0] in heavy}


def test_completing_a_command_loads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COMP_WORDS", "celeriac s"), ("COMP_CWORD", "1"), ("_CELERIAC_COMPLETE", "bash_complete")):
        monkeypatch.setenv(name, value)
    loaded = modules(tmp_path)
    assert "click.shell_completion" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in {*HEAVY, "pydantic", "redis"}}
    assert not {name for name in loaded if name.startswith(("celeriac.coordinator", "celeriac.ops"))}


def test_importing_the_client_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys; from celeriac import Client, JobOptions, JobResult; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert not {name for name in done.stdout.split() if name.partition(".")[0] in HEAVY}


def test_importing_the_package_is_nearly_free(tmp_path: Path) -> None:
    code = "import sys; import celeriac; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert not {"pydantic", "redis", "click"} & set(done.stdout.split())


def test_help_is_quick() -> None:
    assert cpu_seconds(str(CELERIAC), "--help") <= HELP_CPU_SECONDS


def test_list_costs_little_more_than_its_two_libraries() -> None:
    libraries = cpu_seconds(sys.executable, "-c", "import redis, pydantic")
    assert cpu_seconds(str(CELERIAC), "list", "--redis-url", "redis://127.0.0.1:1/0") <= LIST_RATIO * libraries


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["run", "--help"],
        ["worker", "--help"],
        ["submit", "hi", "--redis-url", "redis://127.0.0.1:1/0"],
        ["dev", "notification", "parse"],
    ],
)
def test_nothing_is_imported_from_the_folder_where_it_is_started(arguments: list[str], tmp_path: Path) -> None:
    decoy = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__)\nraise SystemExit('decoy')\n"
    work = tmp_path / "work"
    for name in DECOYS:
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text(decoy)
    for name in ("celery.py", "redis.py", "click.py", "json.py", "celeriac.py"):
        (work / name).write_text(decoy)
    said = CommandLine(work, {"HOME": str(tmp_path)}).run(*arguments)
    assert "decoy" not in said.err
    assert not (tmp_path / "ran").exists()
