"""The seam to a model: one Protocol, requests as kept bytes, failures as types (INTERFACES, Seams)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Role
from celeriac.common.contract.task import Effort, Usage
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm.wire import dumps


@dataclass(frozen=True, slots=True)
class ApiMessage:
    """One message of the history. Its JSON is made once and kept, so that the prompt prefix is the same bytes every
    call."""

    role: Role
    content: tuple[JsonObject, ...]
    wire: bytes

    @classmethod
    def of(cls, role: Role, content: tuple[JsonObject, ...]) -> "ApiMessage":
        """Build with its bytes."""
        return cls(role, content, dumps({"role": role, "content": list(content)}))


class Joined:
    """The messages of one run's requests so far, as one piece of JSON.

    A long history is a megabyte in a thousand pieces: to go through all of them for each call costs as much CPU as all
    else that the call does in this process."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._messages: tuple[ApiMessage, ...] = ()
        self._bytes = bytearray()

    def of(self, messages: tuple[ApiMessage, ...]) -> bytearray:
        """These messages, a comma after each; only to be read, until the next call. What is no continuation of the
        former ones is joined anew."""
        known = len(self._messages)
        if messages[:known] != self._messages:
            self._bytes, known = bytearray(), 0
        for message in messages[known:]:
            self._bytes += message.wire
            self._bytes += b","
        self._messages = messages
        return self._bytes


@dataclass(frozen=True, slots=True)
class CallKey:
    """Which call this is: a task's path survives replays, run and turn count from 1, attempt counts answers asked for
    one turn."""

    session: TaskId
    path: str
    run: int
    turn: int
    attempt: int = 1

    def header(self) -> str:
        """Value of `X-Celeriac-Call`, sent to a stand-in only."""
        return f"{self.path};{self.run};{self.turn};{self.attempt}"


@dataclass(frozen=True, slots=True)
class Request:
    """One model call."""

    key: CallKey
    model: str
    max_tokens: int
    system: tuple[JsonObject, ...]
    """Text blocks, the stable part first."""
    tools_wire: bytes
    """The JSON array of tool definitions, the same bytes for a whole run."""
    messages: tuple[ApiMessage, ...]
    effort: Effort | None = None
    """None: left to the model."""
    thinking: bool | None = None
    joined: Joined = field(default_factory=Joined, compare=False)
    """Kept by the run from call to call."""


@dataclass(frozen=True, slots=True)
class Started:
    """The answer begins; usage holds the input side."""

    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some text of the block at `index`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Pulse:
    """Tokens arrive that are no text: thinking, or the input of a call. Sent now and then, so that a long one does not
    look like a silence."""


@dataclass(frozen=True, slots=True)
class BlockDone:
    """A content block is complete (its tool input parsed). Never sent for a block that was cut."""

    index: int
    block: JsonObject


@dataclass(frozen=True, slots=True)
class Finished:
    """message_stop arrived with a stop_reason: the answer is whole. `usage` is that of the whole call."""

    stop_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class RawEvent:
    """The event as it came, for followers that asked for partial messages."""

    event: JsonObject


ModelEvent = Started | TextDelta | Pulse | BlockDone | Finished | RawEvent


class ModelFailure(CeleriacError):
    """A model call that gave no whole answer. `reason` is the word that a run's outcome carries."""

    reason = "model_error"
    billable = False
    """Whether the server may charge for the call: it was not refused by a status."""


class TooLong(ModelFailure):
    """400 `prompt is too long: N tokens > M maximum`."""

    reason = "prompt_too_long"

    def __init__(self, tokens: int, limit: int) -> None:
        """N and M, in tokens."""
        super().__init__(f"prompt is too long: {tokens} tokens > {limit} maximum")
        self.tokens, self.limit = tokens, limit


class Overfull(ModelFailure):
    """400 `input length and max_tokens exceed context limit: N + M > W`: the prompt alone would fit."""

    reason = "output_does_not_fit"

    def __init__(self, tokens: int, max_tokens: int, window: int) -> None:
        """N, M and W, in tokens."""
        super().__init__(f"the prompt of {tokens} tokens and max_tokens {max_tokens} exceed the window of {window}")
        self.tokens, self.max_tokens, self.window = tokens, max_tokens, window


class TooLarge(ModelFailure):
    """413 from the edge: the request has too many bytes."""

    reason = "request_too_large"


class Passing(ModelFailure):
    """A failure that says nothing against the request: the same may well succeed later."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        """`retry_after` in seconds, None if the server did not say."""
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Passing):
    """429."""

    reason = "rate_limited"


class Overloaded(Passing):
    """529, or an `overloaded_error` inside the stream."""

    reason = "overloaded"


class ServerFailed(Passing):
    """Another 5xx."""

    reason = "server_error"


class Unreachable(ServerFailed):
    """No connection, or no answer on it: nobody knows whether the request arrived."""

    reason = "unreachable"
    billable = True


class BrokenStream(Passing):
    """The stream began and did not end with message_stop: error event, reset, stall or clean early end."""

    reason = "broken_stream"
    billable = True

    def __init__(self, after: str, why: str) -> None:
        """`after`: the last event seen; `why`: what broke."""
        super().__init__(f"the model's answer broke off after {after}: {why}")
        self.after, self.why = after, why


class BadRequest(ModelFailure):
    """Another 4xx: the request was refused as it is; asking again would be refused again."""

    reason = "bad_request"


class NoSuchModel(BadRequest):
    """404: the server does not know the model, or its address is no Messages API."""

    reason = "not_found"


class BadCredentials(ModelFailure):
    """401 or 403, or no key at all."""

    reason = "bad_credentials"


class ReplayFailed(ModelFailure):
    """A replay file has no answer for this call, or the request diverged from what it expects."""

    reason = "replay"


class ModelClient(Protocol):
    """A model. Implementations: the Messages API, a replay file, a script in a test."""

    def stream(self, request: Request, cancel: AbortNode) -> AsyncIterator[ModelEvent]:
        """Ask once. Yields events up to `Finished`; raises ModelFailure. An abort of `cancel` ends the wait at once,
        without Finished."""
        ...
