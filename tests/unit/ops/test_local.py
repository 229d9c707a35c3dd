"""The cluster of a `run`: what its processes inherit, and that nothing of it is left."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from celeriac.common.contract.errors import UsageError
from celeriac.common.settings import LlmSettings, Settings
from celeriac.coordinator.jobs import JobOptions, prepare
from celeriac.ops.children import Child, DidNotStart, ending
from celeriac.ops.folders import child_environment, run_folder
from celeriac.ops.run import check_key

READY = "import sys; print('celeriac role ready: x', file=sys.stderr, flush=True); "
SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


async def child(code: str) -> Child:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    return Child("role", process)


async def test_a_child_is_ready_when_it_says_so_and_ends_when_told() -> None:
    async with asyncio.timeout(20):
        started = await child(READY + SLEEP)
        await started.ready()
        await started.end()
        assert started.returncode == -signal.SIGTERM


async def test_a_child_that_does_not_end_is_killed() -> None:
    async with asyncio.timeout(20):
        started = await child(STUBBORN + READY + SLEEP)
        await started.ready()
        await started.end(grace=0.1)
        assert started.returncode == -signal.SIGKILL


async def test_a_child_that_ends_early_is_an_error_with_its_last_words() -> None:
    async with asyncio.timeout(20):
        started = await child("raise SystemExit('no luck')")
        with pytest.raises(DidNotStart, match="role ended before it was ready; its last lines:\n  no luck"):
            await started.ready()
        await started.end()


def test_an_end_is_told_in_words() -> None:
    assert ending(-signal.SIGKILL) == "was killed by SIGKILL"
    assert ending(3) == "exited with code 3"
    assert ending(-99) == "was killed by signal 99"


def test_children_get_no_way_to_import_from_the_users_folder(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, llm=LlmSettings(model="mine"))
    inherited = {"PATH": "/bin", "PYTHONPATH": f".:{tmp_path}:", "CELERIAC_REDIS_URL": "redis://other"}
    environment = child_environment(settings, inherited, tmp_path, "redis://own")
    assert environment["PYTHONPATH"] == str(tmp_path)
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["CELERIAC_REDIS_URL"] == "redis://own"
    assert '"mine"' in Path(environment["CELERIAC_SETTINGS"]).read_text()


def test_folders_of_killed_runs_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    dead, live = tmp_path / "run" / "4194399-x", tmp_path / "run" / f"{os.getpid()}-x"
    dead.mkdir(parents=True)
    live.mkdir()
    folder = run_folder(tmp_path)
    assert folder.parent == tmp_path / "run"
    assert live.exists()
    assert not dead.exists()


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="CELERIAC_HOME"):
        run_folder(tmp_path / "file")


def test_a_key_is_needed_only_for_the_real_model(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    real = prepare("hi", JobOptions(cwd=tmp_path), settings)
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY"):
        check_key(settings, real)
    check_key(Settings(home=tmp_path, llm=LlmSettings(base_url="http://127.0.0.1:1")), real)
    check_key(settings, prepare("hi", JobOptions(cwd=tmp_path, replay='{"v":1}'), settings))
