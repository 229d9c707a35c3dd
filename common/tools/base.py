"""The tool Protocol, its context and its result (INTERFACES, Tools)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Mode, Value
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.lifetime.cleanup import CleanupRegistry


class Restart(StrEnum):
    """What a new owner does with a call that had started before a crash (INTERFACES, Effects and crashes)."""

    RERUN = "rerun"
    UNKNOWN = "unknown"


class ToolInput(BaseModel):
    """Base of every tool's input; an unknown field is the model's mistake and is told to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gives back to the model. A failure is data: `is_error` with a text."""

    text: str
    is_error: bool = False
    meta: Value | None = None
    """Kept on the substrate with the result."""

    @classmethod
    def error(cls, text: str) -> "ToolResult":
        """A failed call."""
        return cls(text, is_error=True)


class OpenWorkspace(Protocol):
    """The one way for a tool to touch files: by descriptor, confined to the workspace (SECURITY, Files)."""

    @property
    def root(self) -> Path:
        """Absolute path of the workspace, for display and as working directory of commands."""
        ...


Emit = Callable[[str], Awaitable[None]]
"""Sends a piece of live output (text) of the running task to its output stream."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What one call may use."""

    task_id: TaskId
    run: int
    turn: int
    call_id: str
    """The tool_use id."""
    cancel: AbortNode
    """Aborted when the task, or this call, is to end; a command must be dead when `run` returns."""
    emit: Emit
    cleanup: CleanupRegistry
    mode: Mode
    block: int = 0
    """Position of the tool_use block in its message; with run and turn it makes the path of what the call
    dispatches."""
    workspace: OpenWorkspace | None = None
    state: dict[str, Value] = field(default_factory=dict)
    """Per-run memory of tools, by tool name (Read's file stamps, the todo list); shared by the calls of one run."""


I = TypeVar("I", bound=ToolInput)  # noqa: E741 - the name of INTERFACES


class Tool(Protocol[I]):
    """A tool. `wire_name` is what the model sees; `description` comes from a text file beside the module."""

    @property
    def wire_name(self) -> str:
        """Name on the wire, in rules and in hooks."""
        ...

    @property
    def input(self) -> type[I]:
        """The input model; its JSON schema is sent."""
        ...

    @property
    def description(self) -> str:
        """What the model is told."""
        ...

    @property
    def restart(self) -> Restart:
        """For a call that had started before a crash."""
        ...

    @property
    def timeout_s(self) -> float:
        """Longest time one call may take, in seconds."""
        ...

    @property
    def max_chars(self) -> int:
        """Longest result text, in UTF-8 bytes and so in characters too; more is cut by the middleware with a mark."""
        ...

    def read_only(self, i: I) -> bool:
        """Whether this call changes nothing: read-only calls run together, others are barriers (SPEC 5, event 6)."""
        ...

    def nudge(self, memory: dict[str, Value], idle_turns: int) -> str | None:
        """A reminder for the model, after so many tool-use turns in a row without a call of this tool; None = none."""
        ...

    def recall(self, meta: JsonObject, memory: dict[str, Value]) -> None:
        """Take over what a former owner's result kept (`ToolResult.meta` as JSON) into the run's memory."""
        ...

    async def run(self, i: I, ctx: ToolContext) -> ToolResult:
        """Do it. A failure that the model can mend is a ToolResult with is_error; anything raised is caught by
        `invoke`."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One tool_use block on its way to a tool."""

    id: str
    name: str
    raw: JsonObject
    """The input as the model wrote it."""


AnyTool = Tool[Any]
"""A tool of whatever input: a set holds many, and each validates with its own model before it runs."""


class Described(Generic[I]):
    """What the concrete tools share: defaults, and a description read from the text file beside the module."""

    wire_name: str
    input: type[I]
    description: str
    restart: Restart = Restart.UNKNOWN
    timeout_s: float = 120.0
    max_chars: int = 30_000

    def read_only(self, i: I) -> bool:
        """State-changing unless a tool says otherwise."""
        return False

    def nudge(self, memory: dict[str, Value], idle_turns: int) -> str | None:
        """Nothing to remind of unless a tool says otherwise."""
        return None

    def recall(self, meta: JsonObject, memory: dict[str, Value]) -> None:
        """Nothing is kept unless a tool says otherwise."""


def describe(module_file: str) -> str:
    """The text of the `.md` beside a module."""
    return Path(module_file).with_suffix(".md").read_text(encoding="utf-8").strip()
