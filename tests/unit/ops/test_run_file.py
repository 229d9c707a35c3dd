"""One `up` in a home, and who finds it."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from celeriac.common.contract.errors import UsageError
from celeriac.coordinator.servers import LiveUp, birth_of, live_up
from celeriac.ops.run_file import AlreadyRuns, announced, only_one

URL = "redis://127.0.0.1:7/0"


def test_it_is_found_for_the_life_of_the_block_and_read_by_its_owner_only(tmp_path: Path) -> None:
    with only_one(tmp_path), announced(tmp_path, URL, flower=None):
        assert live_up(tmp_path) == LiveUp(URL, os.getpid())
        assert stat.S_IMODE((tmp_path / "up.json").stat().st_mode) == 0o600
    assert live_up(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == ["up.lock"]


def test_a_second_one_is_told_where_the_first_is(tmp_path: Path) -> None:
    with only_one(tmp_path):
        with pytest.raises(AlreadyRuns, match=rf"starting or ending .*pid {os.getpid()}"), only_one(tmp_path):
            pass
        with announced(tmp_path, URL, flower=None):
            with pytest.raises(AlreadyRuns, match=rf"pid {os.getpid()}, server {URL}"), only_one(tmp_path):
                pass
            assert live_up(tmp_path) is not None
    with only_one(tmp_path):
        pass


def test_the_lock_goes_with_its_process_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal; from celeriac.ops.run_file import *\n"
        f"home = pathlib.Path({str(tmp_path)!r})\n"
        f"with only_one(home), announced(home, {URL!r}, flower=None): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == -9
    assert (tmp_path / "up.json").exists()
    assert live_up(tmp_path) is None
    with only_one(tmp_path):
        assert not (tmp_path / "up.json").exists()


@pytest.mark.parametrize(
    "rubbish",
    ["", "{", "[]", "null", '"x"', "[" * 5000, '{"url": 1, "pid": 1}', "\x00", '{"url": "redis://x", "pid": -1}'],
)
def test_rubbish_counts_as_none(rubbish: str, tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text(rubbish)
    assert live_up(tmp_path) is None


def test_bytes_that_are_no_text_and_a_folder_count_as_none(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_bytes(b"\xff\xfe")
    assert live_up(tmp_path) is None
    (tmp_path / "up.json").unlink()
    (tmp_path / "up.json").mkdir()
    assert live_up(tmp_path) is None
    cannot = pytest.raises(UsageError, match=r"up\.json cannot be written")
    with only_one(tmp_path), cannot, announced(tmp_path, URL, flower=None):
        pass
    assert not [file for file in tmp_path.iterdir() if file.name.startswith("up.json.")]


def test_a_number_that_another_process_has_now_is_not_ours(tmp_path: Path) -> None:
    def written(birth: str | None) -> LiveUp | None:
        document = {"url": URL, "pid": os.getpid(), "started": 0, "birth": birth}
        (tmp_path / "up.json").write_text(json.dumps(document))
        return live_up(tmp_path)

    own = birth_of(os.getpid())
    assert own is not None
    assert written(own) == written(None) == LiveUp(URL, os.getpid())
    boot, _, ticks = own.partition(":")
    assert written(f"{boot}:{int(ticks) - 1}") is None
    assert written(f"another-boot:{ticks}") is None


def test_a_zombie_does_not_live() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert birth_of(process.pid) is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert birth_of(process.pid) is None
    process.communicate()


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="CELERIAC_HOME"), only_one(tmp_path / "file"):
        pass
