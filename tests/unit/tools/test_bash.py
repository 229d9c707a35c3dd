"""Bash and TodoWrite as the model sees them."""

import asyncio
from pathlib import Path

import pytest
from pydantic import JsonValue

from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.testing.hands import Hands
from celeriac.workers.tools.todo_write import TodoList


@pytest.mark.parametrize(
    ("command", "text", "failed"),
    [
        ("echo hi", "hi\n", False),
        ("true", "", False),
        ("echo out; exit 3", "out\nexit code 3", True),
        ("printf out; exit 3", "out\nexit code 3", True),
        ("false", "exit code 1", True),
        ("echo x; kill -9 $$", "x\nkilled by signal KILL", True),
        ("cat", "", False),
    ],
)
async def test_the_last_line_tells_how_it_failed(hands: Hands, command: str, text: str, failed: bool) -> None:
    result = await hands.bash(command)
    assert (result.text, result.is_error) == (text, failed)


async def test_a_call_starts_in_the_workspace(hands: Hands) -> None:
    assert (await hands.bash("cd /; true; pwd")).text == "/\n"
    assert (await hands.bash("pwd; touch here")).text == f"{hands.root}\n"
    assert (hands.root / "here").exists()


async def test_a_time_limit_is_told_with_what_was_written(hands: Hands) -> None:
    result = await hands.bash("echo start; sleep 60", timeout=300)
    assert result.is_error
    assert result.text.startswith("start\ntimed out after 0.3 s")


async def test_an_abort_is_told(hands: Hands) -> None:
    running = asyncio.create_task(hands.bash("echo on; sleep 60"))
    async with asyncio.timeout(5):
        while not hands.shown:  # noqa: ASYNC110 - live output has no event
            await asyncio.sleep(0.01)
    hands.cancel.abort(AbortReason.USER)
    result = await running
    assert result.is_error
    assert result.text.startswith("on\ninterrupted")


@pytest.mark.parametrize("raw", [{}, {"timeout": 0}, {"timeout": 600_001}, {"run_in_background": True}])
async def test_bad_input_is_explained(hands: Hands, raw: dict[str, int]) -> None:
    result = await hands.call("Bash", {"command": "true", **raw} if raw else {})
    assert result.is_error
    assert "Bash: " in result.text


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud83d"])
async def test_what_no_system_can_run_is_refused(hands: Hands, command: str) -> None:
    result = await hands.bash(command)
    assert result.is_error
    result.text.encode()


async def test_a_very_long_command_is_an_error_not_a_crash(hands: Hands) -> None:
    result = await hands.bash(f": {'x' * 200_000}; echo hi")
    assert result.is_error
    assert "could not be started" in result.text


async def test_a_workspace_that_was_removed_is_told(hands: Hands, tmp_path: Path) -> None:
    hands.root.rename(tmp_path / "moved")
    result = await hands.bash("true")
    assert result.is_error
    assert "could not be started" in result.text


async def test_the_todo_list_is_kept_for_the_run(hands: Hands) -> None:
    todos: list[JsonValue] = [
        {"content": "Find the bug", "status": "completed"},
        {"content": "Fix it", "status": "in_progress", "activeForm": "Fixing it"},
    ]
    result = await hands.call("TodoWrite", {"todos": todos})
    assert "2 entries: 1 completed, 1 in progress, 0 pending" in result.text
    kept = hands.state["TodoWrite"]
    assert isinstance(kept, TodoList)
    assert kept == result.meta
    assert (await hands.call("TodoWrite", {"todos": [{"content": "", "status": "done"}]})).is_error
    assert hands.state["TodoWrite"] == kept
