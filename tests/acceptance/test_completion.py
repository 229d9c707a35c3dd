"""Shell completion: the scripts, what they complete, and that completing is quick."""

import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from celeriac.common.substrate.embedded import EmbeddedServer
from celeriac.common.testing.command import CELERIAC, CommandLine


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, {"PATH": os.environ["PATH"], "CELERIAC_HOME": str(tmp_path / "home")})


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    async with EmbeddedServer.start(tmp_path / "server") as started:
        yield started.url


def completed(line: CommandLine, text: str, **environ: str) -> list[str]:
    """What bash would offer after this text; a word that is not begun yet counts."""
    words = text.split(" ")
    asked = {"COMP_WORDS": text, "COMP_CWORD": str(len(words) - 1), "_CELERIAC_COMPLETE": "bash_complete"}
    said = line.run(**asked, **environ)
    assert said.err == ""
    return [one.partition(",")[2] for one in said.out.splitlines() if one]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script_and_says_nothing_else(line: CommandLine, shell: str) -> None:
    said = line.run("completion", shell)
    assert (said.code, said.err) == (0, "")
    assert "_CELERIAC_COMPLETE" in said.out and f"{shell}_complete" in said.out


def test_an_unknown_shell_is_a_usage_error_and_the_help_tells_how_to_install(line: CommandLine) -> None:
    said = line.run("completion", "csh")
    assert (said.code, said.err.count("\n")) == (2, 1)
    said = line.run("completion", "--help")
    for words in ("~/.bashrc", "~/.zshrc", "completions/celeriac.fish"):
        assert words in said.out


def test_bash_itself_completes_with_the_script(line: CommandLine) -> None:
    folder = CELERIAC.parent
    program = (
        f'PATH={folder}:$PATH; eval "$(celeriac completion bash)"; '
        'COMP_WORDS=(celeriac do); COMP_CWORD=1; _celeriac_completion celeriac; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, env=dict(line.environ), check=False
    )
    assert (done.stdout, done.stderr) == ("doctor\n", "")


def test_commands_and_options_are_completed(line: CommandLine) -> None:
    assert completed(line, "celeriac st") == ["stop"]
    assert {"run", "up", "logs", "doctor", "completion"} <= set(completed(line, "celeriac "))
    assert completed(line, "celeriac --v") == ["--version"]
    assert completed(line, "celeriac up --w") == ["--workers", "--workspace"]
    assert completed(line, "celeriac completion z") == ["zsh"]
    assert completed(line, "celeriac nothing x") == []


def test_ids_of_jobs_are_completed_from_the_server(line: CommandLine, server: str) -> None:
    known = CommandLine(line.cwd, {**line.environ, "CELERIAC_REDIS_URL": server})
    jobs = {known.run("submit", f"Job {number}").out.strip() for number in range(3)}
    for command in ("show", "follow", "stop", "logs"):
        assert set(completed(known, f"celeriac {command} s-")) == jobs
    one = min(jobs)
    assert completed(known, f"celeriac show {one[:-1]}") == [one]


def test_names_of_logs_are_completed(line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "home" / "logs").mkdir(parents=True)
    (tmp_path / "home" / "logs" / "worker-1.log").touch()
    assert completed(line, "celeriac logs w") == ["worker-1"]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "rubbish", ""])
def test_without_a_server_nothing_is_completed_and_nothing_is_said(line: CommandLine, url: str) -> None:
    assert completed(line, "celeriac show s", CELERIAC_REDIS_URL=url) == []


def test_bad_settings_and_a_dead_up_say_nothing(line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "up.json").write_text(json.dumps({"url": "redis://127.0.0.1:1/0", "pid": 2**22 + 1}))
    assert completed(line, "celeriac show s") == []
    (tmp_path / "home" / "settings.json").write_text("{")
    assert completed(line, "celeriac show s") == []
    assert completed(line, "celeriac logs w") == []


def test_a_server_that_takes_connections_and_never_answers_is_left(line: CommandLine) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        assert completed(line, "celeriac show s", CELERIAC_REDIS_URL=url) == []
