"""The task: states, transitions, and the read model of a record (SPEC 2, INTERFACES). Pure values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from celeriac.common.contract.errors import IllegalTransition
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.presence import Presence
from celeriac.common.contract.text import CleanText


class State(StrEnum):
    """Where a run stands. The last three are terminal."""

    CREATED = "created"
    QUEUED = "queued"
    RUNNING = "running"
    PRODUCING_OUTPUT = "producing_output"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        """Whether this run has ended; only a new run leaves such a state."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.STOPPED})
_ENDS = frozenset({State.FAILED, State.STOPPED})
TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATED: _ENDS | {State.QUEUED},
    State.QUEUED: _ENDS | {State.RUNNING},
    State.RUNNING: _ENDS | {State.QUEUED, State.PRODUCING_OUTPUT, State.COMPLETED},
    State.PRODUCING_OUTPUT: _ENDS | {State.QUEUED, State.COMPLETED},
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.STOPPED: frozenset(),
}
"""SPEC 2. A claim moves created, queued, running or producing_output to running, always by way of queued."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """One run's position in the lifecycle; the twin of what the Lua scripts enforce."""

    task_id: TaskId
    state: State
    run: int = 1

    def advance(self, new: State) -> "Lifecycle":
        """Move to `new`. Raises IllegalTransition."""
        if new not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.task_id} cannot go from {self.state} to {new}")
        return Lifecycle(self.task_id, new, self.run)

    def reopen(self) -> "Lifecycle":
        """Open the next run of an ended one. Raises IllegalTransition."""
        if not self.state.terminal:
            raise IllegalTransition(f"{self.task_id} run {self.run} is {self.state}; only an ended run is reopened")
        return Lifecycle(self.task_id, State.CREATED, self.run + 1)


class Mode(StrEnum):
    """Permission modes, narrow to wide (SPEC 2)."""

    PLAN = "plan"
    DONT_ASK = "dontAsk"
    DEFAULT = "default"
    ACCEPT_EDITS = "acceptEdits"
    BYPASS = "bypassPermissions"

    @property
    def width(self) -> int:
        """0 for the narrowest."""
        return list(Mode).index(self)


def narrower(left: Mode, right: Mode) -> Mode:
    """What a child gets: the narrower of the asked mode and its parent's."""
    return min(left, right, key=lambda mode: mode.width)


class Value(BaseModel):
    """Base of everything that crosses a process: frozen, and unknown fields are an error of the writer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Stored(Value):
    """Base of what is read back from the substrate: a field that a newer writer added is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Effort(StrEnum):
    """How much a model may think and write (SPEC 5)."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


class Limits(Value):
    """Bounds of one task. None = unbounded."""

    turns: Annotated[int, Field(ge=1)] | None = None
    """Tool-use turns."""
    usd: Annotated[float, Field(gt=0)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Wall clock of one run."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Input, cache and output tokens together, of a task and all below it."""


class Usage(Stored):
    """Tokens and tool calls of one run."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    tool_uses: int = 0
    turns: int = 0
    """Model answers of the run, the final text-only one included."""

    @property
    def total_tokens(self) -> int:
        """Input + cache write + cache read + output (SPEC 3)."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens + self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        """The sum, field by field."""
        mine, theirs = self.model_dump(), other.model_dump()
        return Usage(**{name: mine[name] + theirs[name] for name in mine})


class Denial(Stored):
    """A call that was refused by permissions or because the tool set does not hold it."""

    tool_name: str
    tool_use_id: str
    reason: CleanText


class Subtype(StrEnum):
    """How a run ended, in the words of a result message (SPEC 5)."""

    SUCCESS = "success"
    MAX_TURNS = "error_max_turns"
    MAX_BUDGET = "error_max_budget_usd"
    EXECUTION = "error_during_execution"
    STRUCTURED = "error_max_structured_output_retries"


class Outcome(Stored):
    """The end of one run, stored once (PROTOCOL 1, `runs`)."""

    state: State
    subtype: Subtype
    reason: CleanText = ""
    """Empty for success; else a machine-readable word such as `exit 1`, `user`, `poison`, or a sentence."""
    text: CleanText | None = None
    """The final text; for anything but success the partial result."""
    partial: bool = False
    structured: JsonObject | None = None
    usage: Usage = Usage()
    stop_reason: str | None = None
    """stop_reason of the last answer of the model."""
    denials: tuple[Denial, ...] = ()
    undeliverable: tuple[str, ...] = ()
    """Ids of messages that arrived too late for this run."""
    duration_ms: int = 0


class SessionSpec(Value):
    """What a session was asked."""

    kind: Literal[Kind.SESSION] = Kind.SESSION
    prompt: str
    model: str | None = None
    """None: that of the settings."""
    fallback_model: str | None = None
    effort: Effort | None = None
    output_schema: JsonObject | None = None
    """JSON schema of the structured output that ends the session."""


class AgentSpec(Value):
    """What a local agent is asked to do."""

    kind: Literal[Kind.AGENT] = Kind.AGENT
    prompt: str
    description: str = ""
    model: str | None = None
    fallback_model: str | None = None
    effort: Effort | None = None
    subagent_type: str | None = None


class ShellSpec(Value):
    """A command for a detached PTY."""

    kind: Literal[Kind.SHELL] = Kind.SHELL
    command: str
    description: str = ""


Spec = Annotated[SessionSpec | AgentSpec | ShellSpec, Field(discriminator="kind")]
"""What to do, by form. r, t and d have no spec yet: no worker serves them."""


class Workspace(Value):
    """The folder that a session works in, and the queue label that leads to hosts that have it."""

    root: str
    label: str
    """`ws-` + 8 hex digits of host and root (INTERFACES)."""
    rev: str = ""


class Lease(Value):
    """Who owns the task."""

    owner: str
    """`fence/nonce`."""
    process: str
    until_ms: int
    """Server time, epoch milliseconds."""


class Park(Value):
    """A freed slot: what would wake the task."""

    until: str
    """A server time in epoch milliseconds, `inbox`, or `answer:QID`."""
    why: str


class Stop(Value):
    """The stop that covers the current run."""

    kind: Literal["user", "limit"]
    reason: str
    at_ms: int
    confirmed: bool = True
    """False: the owner was lost, so that its processes were not seen to end (PROTOCOL 4)."""


class Times(Value):
    """Epoch milliseconds, server clock; 0 = not yet."""

    created: int = 0
    queued: int = 0
    started: int = 0
    ended: int = 0


class Progress(Value):
    """When this run was last heard of, by kind; epoch milliseconds, 0 = never."""

    token_at: int = 0
    tool_at: int = 0
    heartbeat_at: int = 0


class Record(Value):
    """The read model of a task's record."""

    task_id: TaskId
    kind: Kind
    session: TaskId
    parent: TaskId | None
    path: str
    title: str
    state: State
    run: int
    attempt: int
    fence: int
    lease: Lease | None
    park: Park | None
    stop: Stop | None
    workspace: Workspace | None
    labels: tuple[str, ...]
    mode: Mode
    tools: tuple[str, ...]
    """Allow rules given with the job."""
    limits: Limits
    spec: Spec
    usage: Usage
    outcome: Outcome | None
    """Of the current run, once it has ended."""
    times: Times
    progress: Progress
    asked: bool
    open_children: int
    tlen: int
    unread: int
    activities: tuple[str, ...] = ()
    """At most the 5 most recent, newest last."""
    tries: int = 0
    """Failures in a row of the model call that a park waits for."""
    presence: Presence | None = None
    """How the run is heard of, as of `read_at`; None: it has ended, or waits in a queue."""
    read_at: int = 0
    """When this was read: server time, epoch milliseconds."""
