"""One turn: what it was asked, what it answered, and the lines that it becomes. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from celeriac.common.contract.events import AssistantEvent, Event, Message, UserEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import NewLine, Origin, text_block
from celeriac.common.contract.task import Outcome
from celeriac.common.llm.client import ApiMessage, ModelFailure
from celeriac.common.runtime.deps import Identity
from celeriac.common.runtime.state import LoopState, Transition
from celeriac.common.runtime.stops import ParkRun, StopRun
from celeriac.common.substrate.types import Entry, EntryKind


@dataclass(frozen=True, slots=True)
class Resumed:
    """An answer that is already there when the run begins: from a draft, or a stored line without results."""

    blocks: tuple[JsonObject, ...]
    presets: dict[str, JsonObject] = field(default_factory=dict)
    """tool_use id → the result that repair decided; calls without one are run."""
    stored: bool = False
    """Whether the assistant line is in the transcript already."""
    run: int = 1
    """The run that it belongs to: an earlier one if that run was ended by somebody else."""
    turn: int = 1


@dataclass(slots=True)
class Turn:
    """The locals of one turn."""

    number: int
    state: LoopState
    blocks: tuple[JsonObject, ...] = ()
    resumed: Resumed | None = None
    stop_reason: str | None = None
    failure: ModelFailure | None = None
    halt: StopRun | ParkRun | None = None
    """Why the model was not asked, when that was on purpose."""
    events: list[Event] = field(default_factory=list)
    """Committed lines, to be yielded."""

    @property
    def text(self) -> str:
        """The answer's text."""
        return "\n\n".join(str(block["text"]) for block in self.blocks if block.get("type") == "text")


@dataclass(frozen=True, slots=True)
class Again:
    """Go round once more, with these committed lines added to the history."""

    added: tuple[NewLine, ...]
    transition: Transition


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Parked:
    """The slot was freed; the run goes on elsewhere when it is woken."""

    why: str


Verdict = Again | Ended | Parked


_THINKING = frozenset({"thinking", "redacted_thinking"})


def answer_blocks(blocks: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """An answer as it may be stored: without thinking at its end, which the API refuses in a history. An answer that
    was nothing but thinking becomes empty."""
    kept = list(blocks)
    while kept and kept[-1].get("type") in _THINKING:
        kept.pop()
    return tuple(kept)


EMPTY_MESSAGE_TEXT = "(an empty message)"
"""What the model sees of a message without a visible character: the API refuses blank text, and an entry that became
no text would never be consumed."""


def inbox_blocks(entries: tuple[Entry, ...]) -> tuple[JsonObject, ...]:
    """What an inbox becomes in one user message: notifications in the order in which they happened, then messages,
    then reminders."""
    order = {EntryKind.NOTIFICATION: 0, EntryKind.MESSAGE: 1, EntryKind.LOST: 2, EntryKind.BACK: 2}
    ranked = sorted(entries, key=lambda entry: order[entry.kind])
    return tuple(text_block(entry.text if entry.text.strip() else EMPTY_MESSAGE_TEXT) for entry in ranked)


def inbox_origin(entries: tuple[Entry, ...]) -> Origin:
    """The origin of a line made of inbox entries alone."""
    kinds = {entry.kind for entry in entries}
    if EntryKind.NOTIFICATION in kinds:
        return Origin.NOTIFICATION
    return Origin.MESSAGE if EntryKind.MESSAGE in kinds else Origin.REMINDER


def api_messages(history: tuple[ApiMessage, ...], lines: tuple[NewLine, ...]) -> tuple[ApiMessage, ...]:
    """The history with these lines; neighbours of one role become one message, as the API would read them."""
    messages = list(history)
    for line in lines:
        if messages and messages[-1].role == line.role:
            messages[-1] = ApiMessage.of(line.role, messages[-1].content + line.content)
        else:
            messages.append(ApiMessage.of(line.role, line.content))
    return tuple(messages)


def event_of(line: NewLine, identity: Identity) -> Event:
    """The event of a committed line."""
    message = Message(role=line.role, content=line.content)
    base = {
        "session_id": identity.session,
        "task_id": identity.task_id,
        "parent_task_id": identity.parent,
        "worker": identity.worker,
        "run": line.run,
        "message": message,
    }
    if line.role == "assistant":
        return AssistantEvent.model_validate(base)
    return UserEvent.model_validate({**base, "origin": line.origin.value})
