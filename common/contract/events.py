"""Runtime events: what leaves the loop and what a follower reads (INTERFACES, Events). A discriminated union.

`system` lines carry a subtype and data; an unknown type read from a newer writer is kept as an `UnknownEvent`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Denial, Subtype, Usage, Value


class EventBase(Value):
    """What every event tells of its source."""

    session_id: TaskId
    task_id: TaskId
    parent_task_id: TaskId | None = None
    worker: str = ""
    run: int = 1
    seq: int = 0
    uuid: str = ""
    event_id: str = ""
    """Its place in the session's events: following after it gives the next one."""


class SystemEvent(EventBase):
    """Anything about the run itself: init, status, api_retry, compact_boundary, microcompact_boundary, hook, budget."""

    type: Literal["system"] = "system"
    subtype: str
    data: JsonObject = {}


class Message(Value):
    """A message as the Messages API knows it."""

    role: Literal["user", "assistant"]
    content: tuple[JsonObject, ...]


class AssistantEvent(EventBase):
    """A committed answer of the model."""

    type: Literal["assistant"] = "assistant"
    message: Message


class UserEvent(EventBase):
    """A committed user message: prompt, tool results, notifications, mail."""

    type: Literal["user"] = "user"
    message: Message
    origin: str = "tools"


class StreamEvent(EventBase):
    """A raw event of the answer that is being streamed; only when partial messages are asked for."""

    type: Literal["stream_event"] = "stream_event"
    event: JsonObject


class ResultEvent(EventBase):
    """The end of a run. Only `success` carries `result`."""

    type: Literal["result"] = "result"
    subtype: Subtype
    is_error: bool
    state: str
    result: str | None = None
    structured_output: JsonObject | None = None
    reason: str = ""
    num_turns: int = 0
    duration_ms: int = 0
    total_cost_usd: float | None = None
    """None: not known, until prices are."""
    usage: Usage = Usage()
    stop_reason: str | None = None
    permission_denials: tuple[Denial, ...] = ()


class UnknownEvent(Value):
    """An event of a type that this version does not know: kept, never an error."""

    type: Literal["unknown"] = "unknown"
    raw: JsonObject
    event_id: str = ""


KnownEvent = SystemEvent | AssistantEvent | UserEvent | StreamEvent | ResultEvent
Event = KnownEvent | UnknownEvent
_ADAPTER: TypeAdapter[KnownEvent] = TypeAdapter(Annotated[KnownEvent, Field(discriminator="type")])


def parse_event(raw: JsonObject) -> Event:
    """Read one event; what is not understood is kept whole."""
    try:
        return _ADAPTER.validate_python(raw)
    except ValidationError:
        return UnknownEvent(raw=raw, event_id=str(raw.get("event_id", "")))
