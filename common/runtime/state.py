"""The state that is carried across turns: one immutable object with nine fields, replaced whole (SPEC 5)."""

from dataclasses import dataclass, field
from enum import StrEnum

from celeriac.common.contract.task import Mode, Value
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm.client import ApiMessage


class Step(StrEnum):
    """The twelve events of one turn, in order (SPEC 5)."""

    TAKE_APART = "take_apart"
    REQUEST_START = "request_start"
    PRE_SWEEP = "pre_sweep"
    REACTIVE_COMPACTION = "reactive_compaction"
    STREAM = "stream"
    DISPATCH = "dispatch"
    MICROCOMPACT_BOUNDARY = "microcompact_boundary"
    ABORT_CHECK = "abort_check"
    INTERRUPTION = "interruption"
    AUTO_COMPACTION = "auto_compaction"
    STOP_HOOKS = "stop_hooks"
    COMMIT = "commit"


class Transition(StrEnum):
    """Why the loop goes round again."""

    NEXT_TURN = "next_turn"
    REACTIVE_RETRY = "reactive_retry"
    OUTPUT_ESCALATED = "output_escalated"
    OUTPUT_CONTINUED = "output_continued"
    STOP_HOOK_BLOCKED = "stop_hook_blocked"
    BUDGET_PUSH = "budget_push"
    NOTIFIED = "notified"


@dataclass(frozen=True, slots=True)
class AutoCompactTracking:
    """What automatic compaction remembers."""

    compacted: bool = False
    turn_counter: int = 0
    turn_id: str = ""
    consecutive_failures: int = 0


@dataclass(frozen=True, slots=True)
class ToolUseContext:
    """What the tools of a run share."""

    cancel: AbortNode
    mode: Mode
    memory: dict[str, Value] = field(default_factory=dict)
    """Per-run memory of tools, by tool name (file stamps, the todo list)."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """The nine fields. `turn_count` counts answers of this run."""

    messages: tuple[ApiMessage, ...]
    tool_use_context: ToolUseContext
    auto_compact_tracking: AutoCompactTracking = AutoCompactTracking()
    max_output_tokens_recovery_count: int = 0
    has_attempted_reactive_compact: bool = False
    pending_tool_use_summary: str | None = None
    stop_hook_active: bool = False
    turn_count: int = 0
    transition: Transition | None = None
