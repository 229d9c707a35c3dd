"""Logs of the processes of `up`: whole lines, one start a file, bounded."""

from pathlib import Path

import pytest

from celeriac.ops import log_files
from celeriac.ops.log_files import LogFile, last_line_of, new_logs


def test_each_start_has_a_file_and_the_one_before_is_kept(tmp_path: Path) -> None:
    for number in range(3):
        logs = new_logs(tmp_path)
        LogFile(logs / "worker-1.log").write(f"start {number}")
    assert (tmp_path / "logs" / "worker-1.log").read_text() == "start 2\n"
    assert (tmp_path / "logs" / "worker-1.log.1").read_text() == "start 1\n"
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MAX_BYTES", 100)
    log = LogFile(tmp_path / "x.log")
    for number in range(1000):
        log.write(f"line {number:04}")
        assert all(file.stat().st_size <= 100 for file in tmp_path.iterdir())
    assert {file.name for file in tmp_path.iterdir()} == {"x.log", "x.log.1"}
    assert last_line_of(tmp_path / "x.log") == "line 0999"


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MAX_BYTES", 10)
    log = LogFile(tmp_path / "none" / "x.log")
    for _ in range(5):
        log.write("a line")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "last"), [(b"", ""), (b"\n\n", ""), (b"one\ntwo\n", "two"), (b"x" * 9000 + b"\n\xff", "\ufffd")]
)
def test_the_last_line_of_a_log(data: bytes, last: str, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(data)
    assert last_line_of(tmp_path / "x.log") == last
    assert last_line_of(tmp_path / "none.log") == ""
