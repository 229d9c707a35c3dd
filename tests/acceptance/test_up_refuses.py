"""What `celeriac up` cannot do is told in one line, with nothing left running."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.common.testing.command import CELERIAC, CommandLine, Said
from celeriac.common.testing.processes import of_home


@pytest.fixture
def line(tmp_path: Path) -> Iterator[CommandLine]:
    yield CommandLine(tmp_path, {"PATH": os.environ["PATH"], "CELERIAC_HOME": str(tmp_path / "home")})
    assert not of_home(tmp_path / "home")
    assert not (tmp_path / "home" / "up.json").exists()
    assert not list(tmp_path.glob("home/run/*"))


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield str(other.getsockname()[1])


def is_one_line(said: Said, code: int, *words: str) -> None:
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1), said
    for word in words:
        assert word in said.err


def test_a_port_that_is_taken_is_named_with_its_option(line: CommandLine, taken: str) -> None:
    is_one_line(line.run("up", "--no-flower", "--port", taken), 1, f"port {taken}", "--port")
    is_one_line(line.run("up", "--flower-port", taken), 1, f"port {taken}", "--flower-port")


def test_a_home_that_cannot_be_written_is_named(line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    is_one_line(line.run("up", CELERIAC_HOME=str(tmp_path / "file" / "home")), 2, "file/home", "CELERIAC_HOME")


def test_a_disk_that_takes_nothing_is_told(line: CommandLine, tmp_path: Path) -> None:
    command = f"ulimit -f 0; exec {CELERIAC} up"
    environ = {**line.environ}
    done = subprocess.run(["bash", "-c", command], env=environ, cwd=tmp_path, capture_output=True, check=False)
    is_one_line(Said(done.returncode, done.stdout.decode(), done.stderr.decode()), 2, "cannot be written", "too large")


def test_bad_settings_and_flags_are_usage_errors(line: CommandLine) -> None:
    is_one_line(line.run("up", CELERIAC_LEASE_SECONDS="soon"), 2, "CELERIAC_LEASE_SECONDS")
    is_one_line(line.run("up", "--workers", "0"), 2, "--workers")
    is_one_line(line.run("up", "--label", "NO"), 2, "worker.labels")
    is_one_line(line.run("up", "--workspace", "nowhere"), 2, "nowhere")


def test_a_server_that_cannot_start_says_its_last_words(line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "home" / "server" / "appendonlydir").mkdir(parents=True)
    (tmp_path / "home" / "server" / "appendonlydir" / "appendonly.aof.manifest").write_text("rubbish\n")
    is_one_line(line.run("up", "--no-flower"), 4, "server did not start", "server.log")


def test_a_child_that_cannot_start_says_its_last_words(line: CommandLine, tmp_path: Path) -> None:
    """Nothing that `up` checks beforehand: the child's own environment is broken."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "celery.py").write_text("raise SystemExit('celery is broken here')\n")
    said = line.run("up", "--no-flower", PYTHONPATH=str(tmp_path / "site"))
    is_one_line(said, 4, "did not start: celery is broken here", "logs")
