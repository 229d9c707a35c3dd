"""Real commands: what they write, how they end, and that nothing of them is left (CASES C35, C41, C59, C83, C101)."""

import asyncio
import os
import resource
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from celeriac.common.contract.ids import TaskId
from celeriac.common.lifetime.cancel import AbortNode, AbortReason
from celeriac.common.testing.processes import marked, running
from celeriac.workers.shell.commands import Command, CommandNotStarted, Commands, boottime, command_environment
from celeriac.workers.shell.running import CommandResult

TASK = TaskId("a-" + "0" * 26)
ENVIRONMENT = command_environment({"PATH": os.environ["PATH"], "HOME": "/nonexistent"})


@pytest.fixture
def marker() -> str:
    """A number of seconds to sleep that no other process sleeps."""
    return f"600.{secrets.randbelow(10**9):09d}"


class Shell:
    """Runs commands of one task in a folder."""

    def __init__(self, cwd: Path, commands: Commands | None = None) -> None:
        self.cwd, self.commands = cwd, commands or Commands(None)
        self.cancel = AbortNode()
        self.shown: list[str] = []
        self.moments: list[float] = []

    async def emit(self, text: str) -> None:
        self.shown.append(text)
        self.moments.append(time.monotonic())

    def command(
        self, text: str, *, timeout_s: float | None = 30, pty: bool = False, env: Mapping[str, str] = ENVIRONMENT
    ) -> Command:
        return Command(text=text, cwd=self.cwd, env=env, timeout_s=timeout_s, pty=pty)

    async def run(self, text: str, *, timeout_s: float | None = 30, pty: bool = False) -> CommandResult:
        command = self.command(text, timeout_s=timeout_s, pty=pty)
        async with asyncio.timeout(60):
            return await self.commands.run(command, task_id=TASK, cancel=self.cancel, emit=self.emit)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


both = pytest.mark.parametrize("pty", [False, True], ids=["pipe", "pty"])


@both
async def test_output_and_exit_code_are_kept(shell: Shell, pty: bool) -> None:
    result = await shell.run("echo out; echo err >&2; pwd; exit 9", pty=pty)
    assert result.text == f"out\nerr\n{shell.cwd}\n"
    assert (result.exit_code, result.signal, result.cause) == (9, None, "")
    assert "".join(shell.shown) == result.text or pty


@both
async def test_a_signal_is_named(shell: Shell, pty: bool) -> None:
    result = await shell.run("echo before; kill -SEGV $$", pty=pty)
    assert (result.exit_code, result.signal) == (None, "SEGV")
    assert "before" in result.text


@both
@pytest.mark.parametrize(
    "command",
    [
        "sleep {m} & echo done",
        "setsid sleep {m} & echo done",
        "(setsid sh -c 'sleep {m}; :' &); echo done",
        "nohup setsid nohup sleep {m} >/dev/null 2>&1 & disown; echo done",
        "bash -c 'trap \"\" TERM HUP; sleep {m}' & echo done",
    ],
)
async def test_what_is_left_in_the_background_is_killed(shell: Shell, marker: str, command: str, pty: bool) -> None:
    result = await shell.run(command.format(m=marker), pty=pty)
    assert "done" in result.text
    assert (result.exit_code, result.cause) == (0, "")
    assert result.duration_s < 5
    assert not marked(marker)


async def test_what_is_written_just_after_the_end_is_kept(shell: Shell) -> None:
    assert (await shell.run("(sleep 0.1; echo late) & echo early")).text == "early\nlate\n"
    assert (await shell.run("echo through > >(sleep 0.1; cat)")).text == "through\n"


@both
@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("sh -c 'trap \"\" TERM; echo start; sleep {m}'", "start"),
        ("echo start; sleep {m} | cat", "start"),
        ("echo start; (sleep {m} &) ; sleep {m}", "start"),
        ("echo start; setsid setsid sleep {m} & sleep {m}", "start"),
        ("trap '' TERM INT HUP; echo start; while :; do sleep {m}; done", "start"),
    ],
)
async def test_a_time_limit_kills_the_tree_and_keeps_the_output(
    shell: Shell, marker: str, command: str, text: str, pty: bool
) -> None:
    began = time.monotonic()
    result = await shell.run(command.format(m=marker), timeout_s=0.6, pty=pty)
    assert time.monotonic() - began < 5
    assert result.timed_out
    assert text in result.text
    assert not marked(marker)
    assert (await shell.run("echo usable", pty=pty)).text == "usable\n"


@both
async def test_a_command_gets_time_to_end_by_itself(shell: Shell, pty: bool) -> None:
    result = await shell.run(
        "trap 'echo bye; exit 7' TERM; echo on; while :; do sleep 0.05; done", timeout_s=0.5, pty=pty
    )
    assert result.timed_out
    assert "bye" in result.text
    assert result.exit_code == 7


@both
async def test_an_abort_kills_it(shell: Shell, marker: str, pty: bool) -> None:
    task = asyncio.create_task(shell.run(f"setsid sleep {marker} & sleep {marker}", pty=pty))
    await running(marker, 3)
    shell.cancel.abort(AbortReason.USER)
    assert (await task).cause == "killed"
    assert not marked(marker)


@both
async def test_a_cancelled_wait_leaves_nothing(shell: Shell, marker: str, pty: bool) -> None:
    task = asyncio.create_task(shell.run(f"trap '' TERM; sleep {marker} & sleep {marker}; :", pty=pty))
    await running(marker, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not marked(marker)
    assert shell.commands.count(TASK) == 0


async def test_killing_one_task_leaves_the_others(tmp_path: Path, marker: str) -> None:
    shell = Shell(tmp_path)
    other = TaskId("a-" + "1" * 26)
    commands = shell.commands
    first = asyncio.create_task(shell.run(f"sleep {marker}"))
    second = asyncio.create_task(
        commands.run(shell.command(f"sleep {marker}1"), task_id=other, cancel=AbortNode(), emit=shell.emit)
    )
    await running(marker, 2)
    await commands.kill_all(TASK)
    assert (await first).cause == "killed"
    assert [line for line in marked(marker) if f"{marker}1" in line] == marked(marker) != []
    await commands.kill_all(other, at_once=True)
    assert (await second).signal == "KILL"
    await commands.kill_all(TASK)
    await commands.close()
    assert not marked(marker)


async def test_a_silent_lease_ends_the_commands_of_its_task(tmp_path: Path, marker: str) -> None:
    shell = Shell(tmp_path, Commands(max_silence_s=0.7))
    task = asyncio.create_task(shell.run(f"trap '' TERM; setsid sleep {marker} & sleep {marker}; :"))
    while len(marked(marker)) < 2:  # a loaded machine may take longer than the silence to start it
        shell.commands.beat(TASK)
        await asyncio.sleep(0.05)
    began = time.monotonic()
    result = await task
    assert 0.4 < time.monotonic() - began < 2.5
    assert (result.cause, result.signal) == ("killed", "KILL")
    assert not marked(marker)


async def test_beats_keep_commands_alive_and_count_from_when_they_were_sent(tmp_path: Path, marker: str) -> None:
    shell = Shell(tmp_path, Commands(max_silence_s=0.7))
    task = asyncio.create_task(shell.run(f"sleep {marker}"))
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        shell.commands.beat(TASK)
        await asyncio.sleep(0.1)
    assert marked(marker)
    shell.commands.beat(TASK, boottime() - 5)  # late news of an older renewal takes nothing back
    await asyncio.sleep(0.2)
    assert not task.done()
    assert (await task).cause == "killed"


async def test_a_command_is_not_run_under_a_lease_that_is_over(tmp_path: Path) -> None:
    shell = Shell(tmp_path, Commands(max_silence_s=0.7))
    shell.commands.beat(TASK, boottime() - 5)
    result = await shell.run("sleep 0.5; touch here")
    assert result.cause == "killed"
    assert not (tmp_path / "here").exists()
    shell.commands.forget(TASK)
    assert (await shell.run("echo again")).text == "again\n"


async def test_the_environment_is_the_given_one_and_holds_no_key(shell: Shell) -> None:
    env = command_environment({"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "k", "LC_TIME": "C", "MY_TOKEN": "t"})
    command = shell.command("env -0 | tr '\\0' '\\n' | cut -d= -f1 | sort", env=env)
    result = await shell.commands.run(command, task_id=TASK, cancel=AbortNode(), emit=shell.emit)
    names = set(result.text.split())
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        "PATH", "LC_TIME", "TERM", "NO_COLOR", "PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT", "CI",
    }  # fmt: skip


async def test_the_process_is_confined(shell: Shell) -> None:
    result = await shell.run(
        "ulimit -c; grep NoNewPrivs /proc/self/status; ls /proc/self/fd | wc -l; readlink /proc/self/fd/0;"
        "cat; ps -o sid= -p $$ | tr -d ' '; echo $$"
    )
    core, privileges, descriptors, stdin, session, own = result.text.split("\n")[:6]
    assert (core, privileges.split()[1], stdin) == ("0", "1", "/dev/null")
    assert int(descriptors) == 4  # the three, and the one of ls itself
    assert session == own


async def test_signals_that_python_ignores_are_restored(shell: Shell) -> None:
    result = await shell.run("yes | head -1; echo ${PIPESTATUS[0]}")
    assert result.text == "y\n141\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("cat <<EOF\nhi\n  EOF", 0),
        ('echo "abc', 2),
        ('git() { echo "$@"; }; git commit -m "$(cat <<\'EOF\'\nx\nEOF\n)"', 0),
    ],
)
@both
async def test_open_quotes_and_heredocs_never_wait(shell: Shell, command: str, code: int, pty: bool) -> None:
    result = await shell.run(command, pty=pty)
    assert result.exit_code == code
    assert result.duration_s < 5
    assert (await shell.run("echo sane", pty=pty)).text == "sane\n"


async def test_calls_share_nothing(shell: Shell) -> None:
    await shell.run("cd /; export X=1; f() { :; }")
    assert (
        await shell.run("pwd; echo ${X-unset}; type f 2>/dev/null || echo none")
    ).text == f"{shell.cwd}\nunset\nnone\n"


@both
async def test_endless_output_needs_little_memory(shell: Shell, pty: bool) -> None:
    await shell.run("echo warm", pty=pty)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await shell.run("yes", timeout_s=3, pty=pty)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert result.timed_out
    assert result.truncated
    assert result.total_bytes > 1_000_000
    assert len(result.text.encode()) < 28_500
    assert str(result.total_bytes) in result.text
    assert grown_kib < 20 * 1024
    assert sum(map(len, shell.shown)) < 1_200_000


@pytest.mark.parametrize(
    ("command", "size"),
    [
        ("head -c 5000000 /dev/zero | tr '\\0' A; echo", 5_000_001),
        (r"printf '\xf0\x9f\x98\x80%.0s' {1..20000}", 80_000),
        ("head -c 1000000 /dev/urandom", 1_000_000),
        ("head -c 50000000 /dev/zero", 50_000_000),
        ("yes x | head -c 300000000", 300_000_000),
    ],
)
async def test_any_output_is_bounded_in_bytes_and_valid(shell: Shell, command: str, size: int) -> None:
    result = await shell.run(f"{command}; exit 3")
    assert result.exit_code == 3
    assert result.total_bytes == size
    assert len(result.text.encode()) <= 28_500
    assert result.truncated
    assert f"{size} bytes" in result.text


async def test_a_progress_bar_is_its_last_state(shell: Shell) -> None:
    result = await shell.run("for i in $(seq 100000); do printf '\\rdone %d' $i; done; echo; echo end")
    assert result.text == "done 100000\nend\n"


async def test_live_output_comes_while_it_runs_and_in_pieces(shell: Shell) -> None:
    await shell.run("for i in 1 2 3 4; do echo $i; sleep 0.2; done")
    assert "".join(shell.shown) == "1\n2\n3\n4\n"
    assert shell.moments[-1] - shell.moments[0] > 0.4
    shell.shown.clear()
    await shell.run("seq 20000")
    assert len(shell.shown) < 30


async def test_a_follower_that_fails_does_not_hurt_the_command(shell: Shell) -> None:
    async def broken(text: str) -> None:
        raise ConnectionError(text)

    result = await shell.commands.run(shell.command("echo fine"), task_id=TASK, cancel=AbortNode(), emit=broken)
    assert (result.text, result.exit_code) == ("fine\n", 0)


async def test_stdin_of_a_terminal_can_be_written(shell: Shell) -> None:
    command = shell.command("read -r name; echo hello $name; read -r -s x; echo got $x; test -t 0 && tty", pty=True)
    started = await shell.commands.start(command, task_id=TASK, cancel=AbortNode(), emit=shell.emit)
    await started.write_stdin("wörld\n".encode())
    await started.write_stdin(b"sec" + b"ret\n")
    result = await started.wait()
    assert "hello wörld" in result.text
    assert "got secret" in result.text
    assert "/dev/pts/" in result.text
    await started.write_stdin(b"too late\n")


async def test_an_interrupt_is_typed_like_anything_else(shell: Shell, marker: str) -> None:
    started = await shell.commands.start(
        shell.command(f"sleep {marker}; echo after", pty=True), task_id=TASK, cancel=AbortNode(), emit=shell.emit
    )
    waiting = asyncio.create_task(started.wait())
    await running(marker, 2)
    await started.write_stdin(b"\x03")
    result = await waiting
    assert result.signal == "INT" or result.exit_code == 130
    assert not marked(marker)


async def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "missing")
    with pytest.raises(CommandNotStarted, match="missing"):
        await shell.run("true")
    assert shell.commands.count(TASK) == 0


async def test_many_commands_at_once(shell: Shell) -> None:
    results = await asyncio.gather(*(shell.run(f"sleep 0.1; exit {number}") for number in range(30)))
    assert [result.exit_code for result in results] == list(range(30))
    assert shell.commands.count(TASK) == 0


@both
async def test_renewals_and_a_stop_while_a_command_starts_come_after_what_it_is_to_run(
    tmp_path: Path, pty: bool
) -> None:
    shell = Shell(tmp_path, Commands(60))
    starting = asyncio.create_task(shell.run("echo begun; sleep 60", pty=pty))
    while shell.commands.count(TASK) == 0:  # noqa: ASYNC110 - the very next step of the start
        await asyncio.sleep(0)
    for _ in range(3):
        shell.commands.beat(TASK)
    await shell.commands.kill_all(TASK)
    result = await starting
    assert result.cause == "killed" and shell.commands.count(TASK) == 0

    calm = asyncio.create_task(shell.run("echo done", pty=pty))
    while not calm.done():
        shell.commands.beat(TASK)
        await asyncio.sleep(0)
    assert (calm.result().exit_code, calm.result().text.strip(), calm.result().cause) == (0, "done", "")
