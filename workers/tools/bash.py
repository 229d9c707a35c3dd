"""Bash: one command, from the workspace's root, to its end."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from celeriac.common.contract.tool_names import BASH
from celeriac.common.tools.base import Described, ToolContext, ToolInput, ToolResult, describe
from celeriac.workers.shell.commands import Command, CommandNotStarted, Commands, command_environment
from celeriac.workers.shell.running import CommandResult
from celeriac.workers.workspace import WorkspaceError, as_workspace

DEFAULT_MS = 120_000
MAX_MS = 600_000
_MARGIN_SECONDS = 15.0
"""On top of a command's own limit: its grace, the killing, the reading of what it left."""


class BashInput(ToolInput):
    """See bash.md."""

    command: Annotated[str, Field(min_length=1, description="Run exactly as it stands by bash -c")]
    timeout: Annotated[int, Field(gt=0, le=MAX_MS, description="Time limit in milliseconds")] = DEFAULT_MS
    description: Annotated[str, Field(description="What the command does, in a few words")] = ""


class Bash(Described[BashInput]):
    """Runs commands."""

    wire_name = BASH
    input = BashInput
    description = describe(__file__)
    timeout_s = MAX_MS / 1000 + _MARGIN_SECONDS

    def __init__(self, commands: Commands, environment: Mapping[str, str]) -> None:
        """`environment`: what commands may inherit; names that are not on the allow-list are dropped."""
        self._commands, self._environment = commands, command_environment(environment)

    async def run(self, i: BashInput, ctx: ToolContext) -> ToolResult:
        """Run it; nothing of it is left when this returns."""
        if (why := _unrunnable(i.command)) is not None:
            return ToolResult.error(why)
        try:
            root = as_workspace(ctx.workspace).root
            command = Command(text=i.command, cwd=root, env=self._environment, timeout_s=i.timeout / 1000)
            result = await self._commands.run(command, task_id=ctx.task_id, cancel=ctx.cancel, emit=ctx.emit)
        except (WorkspaceError, CommandNotStarted) as error:
            return ToolResult.error(str(error))
        return _told(result, i.timeout / 1000)


def _unrunnable(command: str) -> str | None:
    """Why no operating system could run it."""
    if "\0" in command:
        return "a command cannot hold a NUL character"
    if any("\ud800" <= char <= "\udfff" for char in command):
        return "the command holds half of a surrogate pair"
    return None


def _told(result: CommandResult, limit_s: float) -> ToolResult:
    """The output, and a last line that tells how it ended unless that was well."""
    ending = _ending(result, limit_s)
    if ending is None:
        return ToolResult(result.text)
    text = result.text if not result.text or result.text.endswith("\n") else f"{result.text}\n"
    return ToolResult.error(text + ending)


def _ending(result: CommandResult, limit_s: float) -> str | None:
    if result.timed_out:
        return f"timed out after {limit_s:g} s: the command and all that it started were killed"
    if result.cause == "killed":
        return "interrupted: the command and all that it started were killed"
    if result.cause == "lost":
        return "the command's supervisor vanished: how the command ended is unknown"
    if result.signal is not None:
        return f"killed by signal {result.signal}"
    return f"exit code {result.exit_code}" if result.exit_code else None
