"""Hooks: the seam (SPEC 5). A hook observes, rewrites or blocks; the loop only triggers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject


class HookName(StrEnum):
    """The events that hooks are told of."""

    USER_PROMPT_SUBMIT = "UserPromptSubmit"
    PRE_TOOL_USE = "PreToolUse"
    POST_TOOL_USE = "PostToolUse"
    STOP = "Stop"
    SUBAGENT_START = "SubagentStart"
    SUBAGENT_STOP = "SubagentStop"
    PRE_COMPACT = "PreCompact"
    POST_COMPACT = "PostCompact"
    INSTRUCTIONS_LOADED = "InstructionsLoaded"


@dataclass(frozen=True, slots=True)
class HookEvent:
    """What happened."""

    name: HookName
    task_id: TaskId
    tool: str = ""
    tool_input: JsonObject | None = None
    tool_use_id: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """What the hooks said, put together."""

    block: str | None = None
    """The reason of a refusal."""
    rewrite: JsonObject | None = None
    """A tool's input instead of the model's."""
    context: tuple[str, ...] = ()
    stop: bool = False


NOTHING = HookOutcome()


class Hooks(Protocol):
    """Runs what is configured for an event. A failing hook is reported and never raises."""

    async def trigger(self, event: HookEvent) -> HookOutcome:
        """Run all hooks of the event."""
        ...


class NullHooks:
    """None are configured."""

    async def trigger(self, event: HookEvent) -> HookOutcome:
        """Nothing to say."""
        return NOTHING
