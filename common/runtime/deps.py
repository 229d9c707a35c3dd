"""What the loop is given: every outside thing behind a seam (INTERFACES, RunDeps). Null forms of later parts stand
here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft, NewLine
from celeriac.common.contract.task import Denial, Effort, Limits, Outcome, Usage
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.lifetime.cleanup import CleanupRegistry
from celeriac.common.llm.client import Joined, ModelClient, Request, TooLarge, TooLong
from celeriac.common.policy.decide import Permissions, Policy
from celeriac.common.policy.hooks import Hooks, NullHooks
from celeriac.common.runtime.fallback import Switch
from celeriac.common.runtime.state import LoopState, Step
from celeriac.common.settings import RetrySettings
from celeriac.common.substrate.types import Ack, Entry, Finish, ParkStatus
from celeriac.common.tools.base import OpenWorkspace
from celeriac.common.tools.toolbox import Toolbox


class Writer(Protocol):
    """The owner's writes. Implementation: `substrate.leases.Lease`. Every method raises LeaseLost when ownership is
    gone."""

    @property
    def unread(self) -> int:
        """Messages and notifications that waited at the last answer of the substrate."""
        ...

    def may_act(self) -> bool:
        """Whether less than 2/3 of the lease passed since the last renewal was sent (PROTOCOL 4, local clock)."""
        ...

    async def changed(self) -> None:
        """Wait until something is unread, a stop is asked, a child ended or the lease is lost."""
        ...

    async def append(
        self,
        lines: Sequence[NewLine],
        *,
        consume: Sequence[str] = (),
        usage: Usage | None = None,
        progress: bool = True,
        asked: bool = False,
    ) -> Ack:
        """Append lines, consume inbox entries from the head, record the run's usage so far."""
        ...

    async def draft(self, draft: Draft, started: Sequence[str]) -> Ack:
        """Store the answer's complete blocks and start marks before a state-changing call starts (PROTOCOL 5)."""
        ...

    async def tool_done(self, tool_use_id: str, result: JsonObject) -> Ack:
        """Keep the outcome of a state-changing call."""
        ...

    async def finish(self, outcome: Outcome, last_lines: Sequence[NewLine] = ()) -> Finish:
        """End the run in one transaction."""
        ...

    async def park(self, until: int | str, why: str) -> ParkStatus:
        """Free the slot until a time or an inbox entry."""
        ...

    async def park_for(self, seconds: float, why: str, tries: int = 0) -> ParkStatus:
        """Free the slot for so long; `tries`: how often the model call has failed that the run waits for."""
        ...

    async def release(self) -> ParkStatus:
        """Hand the task over at once: the graceful end of a closing process."""
        ...


class Inbox(Protocol):
    """The task's unread entries."""

    async def unread(self) -> tuple[Entry, ...]:
        """All of them, oldest first, information entries included."""
        ...


class Output(Protocol):
    """Live output of the run; never blocks the loop."""

    def text(self, chunk: str) -> None:
        """A piece of the answer."""
        ...

    def printed(self, chunk: str) -> None:
        """A piece of a tool's output."""
        ...

    def heard(self) -> None:
        """Tokens arrive that are not shown."""
        ...

    def activity(self, line: str) -> None:
        """What the task does now, one line."""
        ...

    def notice(self, subtype: str, data: JsonObject) -> None:
        """A system event for followers."""
        ...

    async def flush(self) -> None:
        """Send what is buffered: before the run ends, since nothing can be written afterwards."""
        ...


class Compactor(Protocol):
    """The ladder (SPEC 7)."""

    async def before_turn(self, state: LoopState) -> LoopState:
        """Events 3: spill and the microcompact pre-sweep."""
        ...

    async def on_too_long(self, state: LoopState, failure: TooLong | TooLarge) -> LoopState | None:
        """Event 4: reactive compaction; None = gives up."""
        ...

    async def after_turn(self, state: LoopState, usage: Usage) -> LoopState:
        """Event 10: the auto-compact decision."""
        ...


class NullCompactor:
    """Leaves the history as it is."""

    async def before_turn(self, state: LoopState) -> LoopState:
        """Nothing to sweep."""
        return state

    async def on_too_long(self, state: LoopState, failure: TooLong | TooLarge) -> LoopState | None:
        """Gives up."""
        return None

    async def after_turn(self, state: LoopState, usage: Usage) -> LoopState:
        """Nothing to decide."""
        return state


class Memory(Protocol):
    """What is left afterwards (SPEC 8)."""

    async def on_turn_end(self, state: LoopState) -> None:
        """A turn without tool calls has ended."""
        ...


class NullMemory:
    """Remembers nothing."""

    async def on_turn_end(self, state: LoopState) -> None:
        """Nothing to keep."""


class Budget(Protocol):
    """Money and tokens (PROTOCOL 6)."""

    async def reserve(self, request: Request) -> int:
        """Reserve the worst case of a call; the max_tokens that it may ask for, at most the request's own. Raises
        BudgetSpent, ParkRun."""
        ...

    async def settle(self, request: Request, usage: Usage | None) -> None:
        """Settle from real usage, once for each reserve; None: nobody knows what the call cost."""
        ...


class NullBudget:
    """No limit."""

    async def reserve(self, request: Request) -> int:
        """Always granted."""
        return request.max_tokens

    async def settle(self, request: Request, usage: Usage | None) -> None:
        """Nothing was reserved."""


class Governor(Protocol):
    """The rate limit that a fleet shares (DESIGN 5)."""

    async def acquire(self, model: str, tokens: int) -> None:
        """Wait for a permit. Raises ParkRun."""
        ...


class NullGovernor:
    """Every call is permitted at once."""

    async def acquire(self, model: str, tokens: int) -> None:
        """Granted."""


class Sections(Protocol):
    """The system prompt, assembled by the real state (SPEC 5)."""

    def render(self) -> tuple[JsonObject, ...]:
        """Text blocks, the stable part first."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who runs."""

    task_id: TaskId
    session: TaskId
    parent: TaskId | None
    kind: Kind
    path: str
    run: int
    worker: str


@dataclass(slots=True)
class Tally:
    """What this run has used and met so far; absolute numbers, written with every append."""

    usage: Usage = Usage()
    denials: list[Denial] = field(default_factory=list)
    stop_reason: str | None = None
    last_text: str = ""
    tool_turns: int = 0
    idle: dict[str, int] = field(default_factory=dict)
    """Tool name → tool-use turns in a row without a call of it."""
    asked: bool = False
    """A SyntheticOutput question waits for its reply."""
    tries: int = 0
    """Failures in a row of the call that is being made; kept across a park."""
    model: str | None = None
    """The one that was asked last."""
    prompt_tokens: int = 0
    """Length of the last prompt that was answered."""

    by_model: dict[str, Usage] = field(default_factory=dict)
    """Model → what its answers used."""

    def add(self, usage: Usage, model: str) -> None:
        """Count one more answer of a model."""
        self.usage = self.usage.plus(usage)
        self.prompt_tokens = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
        self.by_model[model] = self.by_model.get(model, Usage()).plus(usage)

    def tool_used(self) -> None:
        """Count one tool call."""
        self.usage = self.usage.plus(Usage(tool_uses=1))


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The slice of the settings that the loop reads."""

    max_tokens: int = 8_000
    """SPEC 5, recovery: the first request of a turn asks for 8,000."""
    retry: RetrySettings = RetrySettings()
    effort: Effort | None = None
    thinking: bool | None = None
    limits: Limits = Limits()


def _no_observer(step: Step) -> None:
    """Observe nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeps:
    """Everything the loop may touch."""

    identity: Identity
    settings: LoopSettings
    model: ModelClient
    toolbox: Toolbox
    permissions: Permissions
    policy: Policy
    writer: Writer
    inbox: Inbox
    output: Output
    sections: Sections
    cancel: AbortNode
    cleanup: CleanupRegistry
    tally: Tally
    switch: Switch
    workspace: OpenWorkspace | None = None
    hooks: Hooks = NullHooks()
    compactor: Compactor = NullCompactor()
    memory: Memory = NullMemory()
    budget: Budget = NullBudget()
    governor: Governor = NullGovernor()
    observe: Callable[[Step], None] = _no_observer
    joined: Joined = field(default_factory=Joined)

    @property
    def turns_spent(self) -> bool:
        """Whether the limit of tool-use turns is reached: then only an answer may follow, by text or by tool."""
        limit = self.settings.limits.turns
        return limit is not None and self.tally.tool_turns >= limit
