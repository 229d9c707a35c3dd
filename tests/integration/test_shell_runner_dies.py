"""A runner that is killed or stopped: its commands die with it (CASES C41; DESIGN 3.3)."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from celeriac.common.testing.processes import gone, marked, running

RUNNER = """
import asyncio, sys
from pathlib import Path
from celeriac.common.contract.ids import TaskId
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.workers.shell.commands import Command, Commands, command_environment

TASK = TaskId("a-" + "0" * 26)

async def emit(text):
    pass

async def beat(commands):
    while True:
        commands.beat(TASK)
        await asyncio.sleep(0.1)

async def main(text, pty):
    commands = Commands(max_silence_s=1.0)
    beating = asyncio.create_task(beat(commands))
    command = Command(text=text, cwd=Path("/"), env=command_environment({}), pty=pty == "pty")
    await commands.run(command, task_id=TASK, cancel=AbortNode(), emit=emit)

asyncio.run(main(sys.stdin.read(), sys.argv[1]))
"""


@asynccontextmanager
async def runner(marker: str, mode: str) -> AsyncIterator[asyncio.subprocess.Process]:
    text = f"trap '' TERM HUP INT; setsid sleep {marker} & sleep {marker} & sleep {marker}; :"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", RUNNER, mode, stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.close()
    try:
        await running(marker, 4)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
def marker() -> str:
    return f"600.{secrets.randbelow(10**9):09d}"


@pytest.mark.parametrize("mode", ["pipe", "pty"])
async def test_a_killed_runner_takes_its_commands_along(marker: str, mode: str) -> None:
    async with runner(marker, mode) as process:
        process.kill()
        await gone(marker, seconds=2)


@pytest.mark.parametrize("mode", ["pipe", "pty"])
async def test_a_stopped_runner_is_silent_so_its_commands_die(marker: str, mode: str) -> None:
    async with runner(marker, mode) as process:
        await asyncio.sleep(1.3)  # longer than the silence that is allowed: the beats keep them alive
        assert len(marked(marker)) >= 4
        os.kill(process.pid, signal.SIGSTOP)
        await gone(marker, seconds=3)
