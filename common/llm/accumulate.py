"""From the raw events of a streamed answer to finished blocks. Knows the Messages API's events; does no I/O.

A block is given out only when it is complete, an answer only when message_stop has come with a stop_reason. Whatever
ends earlier is a BrokenStream, an orderly close of the connection too (MODEL_API: no exception tells of it).
"""

import time
from typing import cast

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.task import Usage
from celeriac.common.llm.client import (
    BlockDone,
    BrokenStream,
    Finished,
    ModelEvent,
    ModelFailure,
    Overloaded,
    Pulse,
    RateLimited,
    RawEvent,
    Started,
    TextDelta,
)
from celeriac.common.llm.wire import loads_object

NOTHING_YET = "the response headers"
"""`BrokenStream.after` when no event had come."""
PULSE_SECONDS = 5.0
"""Between two signs of tokens that are no text: much less than a silence, and rare enough to cost nothing."""
CUT_REASONS = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons that end an answer wherever it happens to be."""
_APPENDED = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "compaction_delta": "content",
}
"""Which field of its block a delta makes longer; in the delta the field has the same name."""
_INPUT_FIELDS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


class _Unexpected(Exception):
    """An event that the protocol does not allow at this place."""


class _Block:
    """One content block in the making."""

    def __init__(self, start: JsonObject) -> None:
        self.value = dict(start)
        self.parts: dict[str, list[str]] = {}
        self.partial_json: list[str] = []

    def take(self, delta: JsonObject) -> str | None:
        """Add a delta; returns the text that a reader would see. Deltas of an unknown type change nothing."""
        match delta.get("type"):
            case "input_json_delta":
                self.partial_json.append(_text(delta, "partial_json"))
            case "citations_delta":
                have = self.value.get("citations")
                self.value["citations"] = [*(have if isinstance(have, list) else []), delta.get("citation")]
            case str() as kind if kind in _APPENDED:
                part = _text(delta, _APPENDED[kind])
                self.parts.setdefault(_APPENDED[kind], []).append(part)
                return part if kind == "text_delta" else None
        return None

    def complete(self) -> JsonObject | None:
        """The finished block; None for one that is not to be used: its input was cut, or its text is blank (C56)."""
        block = dict(self.value)
        for field, parts in self.parts.items():
            block[field] = str(block.get(field) or "") + "".join(parts)
        if joined := "".join(self.partial_json):
            try:
                block["input"] = loads_object(joined)
            except ValueError:
                return None
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
            return None
        blank = block.get("type") == "text" and not str(block.get("text") or "").strip()
        return None if blank else block

    @property
    def may_be_cut(self) -> bool:
        """A tool call without any input yet: only what follows tells `no input` from `cut before its input`."""
        return self.value.get("type") == "tool_use" and not self.value.get("input") and not "".join(self.partial_json)


class Accumulator:
    """Feed it every event of one answer in order, then close it."""

    def __init__(self, *, raw: bool = False) -> None:
        """`raw`: also give out every event as it came."""
        self.after = NOTHING_YET
        """The last event seen, as `name` or `name:index`."""
        self.finished = False
        self._raw = raw
        self._started = False
        self._open: dict[int, _Block] = {}
        self._seen: set[int] = set()
        self._held: BlockDone | None = None
        self._pulsed_at = time.monotonic()
        self._calls = 0
        self._lost_calls = 0
        self._usage: dict[str, int] = {}
        self._stop_reason: str | None = None

    def feed(self, name: str, data: JsonObject) -> list[ModelEvent]:
        """What this event completes. Raises ModelFailure for an error event and for events out of place."""
        if self.finished:
            return []
        try:
            events = self._handle(name, data)
        except _Unexpected as error:
            raise BrokenStream(self.after, f"unexpected {name}: {error}") from error
        if events is None:
            return []
        self.after = label(name, data)
        return [RawEvent(data), *events] if self._raw else events

    def close(self) -> None:
        """The stream has ended. Raises BrokenStream unless the answer is whole."""
        if not self.finished:
            raise BrokenStream(self.after, "the stream ended without message_stop")

    def failure(self, data: JsonObject) -> ModelFailure:
        """The failure that an `error` event stands for; before message_start nothing has been answered yet."""
        error = data.get("error")
        error = error if isinstance(error, dict) else {}
        kind, message = str(error.get("type") or "error"), str(error.get("message") or "")
        if not self._started and kind == "overloaded_error":
            return Overloaded(message)
        if not self._started and kind == "rate_limit_error":
            return RateLimited(message)
        return BrokenStream(self.after, f"{kind}: {message}")

    def _handle(self, name: str, data: JsonObject) -> list[ModelEvent] | None:  # noqa: PLR0911 - a table of the events
        """None for `ping` and for kinds that this version does not know: newer servers send new ones (C107)."""
        match name:
            case "message_start":
                return self._message_start(data)
            case "content_block_start":
                return self._block_start(data)
            case "content_block_delta":
                return self._block_delta(data)
            case "content_block_stop":
                return self._block_stop(data)
            case "message_delta":
                return self._message_delta(data)
            case "message_stop":
                return self._message_stop()
            case "error":
                raise self.failure(data)
            case _:
                return None

    def _message_start(self, data: JsonObject) -> list[ModelEvent]:
        if self._started:
            raise _Unexpected("the answer had begun")
        self._started = True
        message = _object(data, "message")
        self._merge(message.get("usage"))
        return [Started(str(message.get("model") or ""), self._total())]

    def _block_start(self, data: JsonObject) -> list[ModelEvent]:
        index = _index(data)
        if not self._started or index in self._seen:
            raise _Unexpected(f"block {index}")
        self._seen.add(index)
        self._open[index] = _Block(_object(data, "content_block"))
        return self._release()

    def _block_delta(self, data: JsonObject) -> list[ModelEvent]:
        index, block = self._opened(data)
        text = block.take(_object(data, "delta"))
        return [TextDelta(index, text)] if text else self._pulse()

    def _pulse(self) -> list[ModelEvent]:
        now = time.monotonic()
        if now - self._pulsed_at < PULSE_SECONDS:
            return []
        self._pulsed_at = now
        return [Pulse()]

    def _block_stop(self, data: JsonObject) -> list[ModelEvent]:
        index, block = self._opened(data)
        del self._open[index]
        value = block.complete()
        if block.value.get("type") == "tool_use":
            self._calls += value is not None
            self._lost_calls += value is None
        if value is None:
            return []
        done = BlockDone(index, value)
        if block.may_be_cut:
            self._held = done
            return []
        return [done]

    def _message_delta(self, data: JsonObject) -> list[ModelEvent]:
        self._merge(data.get("usage"))
        reason = _object(data, "delta").get("stop_reason")
        self._stop_reason = reason if isinstance(reason, str) else self._stop_reason
        if self._stop_reason in CUT_REASONS:
            self._held = None
        return self._release() if self._stop_reason is not None else []

    def _message_stop(self) -> list[ModelEvent]:
        if self._open:
            raise _Unexpected(f"block {min(self._open)} had no end")
        if not self._stop_reason:
            raise _Unexpected("there was no stop_reason")
        if self._lacks_a_call():
            raise _Unexpected("a tool call that the answer asks for is not whole")
        self.finished = True
        return [Finished(self._stop_reason, self._total())]

    def _lacks_a_call(self) -> bool:
        """An answer that was not cut by a limit has every call that it asks for; without one it would pass for an end
        (C107)."""
        announced = self._stop_reason == "tool_use" and not self._calls
        return self._stop_reason not in CUT_REASONS and (announced or self._lost_calls > 0)

    def _opened(self, data: JsonObject) -> tuple[int, _Block]:
        index = _index(data)
        if index not in self._open:
            raise _Unexpected(f"block {index} is not open")
        return index, self._open[index]

    def _release(self) -> list[ModelEvent]:
        held, self._held = self._held, None
        return [] if held is None else [held]

    def _merge(self, usage: JsonValue) -> None:
        """Counts are cumulative; the input side comes first, and a null or a missing count says nothing."""
        for field in _INPUT_FIELDS if isinstance(usage, dict) else ():
            value = cast("JsonObject", usage).get(field)
            if isinstance(value, int):
                self._usage[field] = value

    def _total(self) -> Usage:
        return Usage(**self._usage)


def label(name: str, data: JsonObject) -> str:
    """How an event is called in failures and in replay files: `message_start`, `content_block_stop:1`."""
    return f"{name}:{data['index']}" if "index" in data else name


def _index(data: JsonObject) -> int:
    index = data.get("index")
    if not isinstance(index, int):
        raise _Unexpected("no index")
    return index


def _object(data: JsonObject, field: str) -> JsonObject:
    value = data.get(field)
    if not isinstance(value, dict):
        raise _Unexpected(f"no {field}")
    return value


def _text(data: JsonObject, field: str) -> str:
    value = data.get(field)
    if not isinstance(value, str):
        raise _Unexpected(f"no {field}")
    return value
