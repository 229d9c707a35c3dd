"""From a scripted reply to the events of a streamed answer, the shape the Messages API gives them. Pure."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.llm.accumulate import label

PIECES = 6
"""Deltas that a longer text or input is cut into: enough for a reader to see it grow."""
SHORTEST_PIECE = 12
"""Characters of a delta, so that short texts do not become a delta a letter."""
SIGNATURE_PREFIX = "sig_"


class SseEvent(NamedTuple):
    """One server-sent event."""

    name: str
    data: JsonObject

    @property
    def label(self) -> str:
        """`name` or `name:index`."""
        return label(self.name, self.data)

    def wire(self) -> bytes:
        """Its bytes in the stream."""
        return b"event: %s\ndata: %s\n\n" % (self.name.encode(), orjson.dumps(self.data))


class Answer(NamedTuple):
    """A whole answer as JSON: what a call without streaming gets."""

    message_id: str
    model: str
    content: tuple[JsonObject, ...]
    stop_reason: str | None
    usage: JsonObject

    def message(self) -> JsonObject:
        """The message object of the API."""
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": list(self.content),
            "stop_reason": self.stop_reason,
            "stop_sequence": None,
            "usage": self.usage,
        }


def sign(thinking: str) -> str:
    """The signature of a thinking text that a script gave none for: anybody can check it without a memory."""
    return SIGNATURE_PREFIX + hashlib.sha256(thinking.encode()).hexdigest()


def expand(answer: Answer) -> list[SseEvent]:
    """All events of the answer, in order."""
    usage = {**answer.usage, "output_tokens": 1}
    opening = {**answer.message(), "content": [], "stop_reason": None, "usage": usage}
    events = [SseEvent("message_start", {"type": "message_start", "message": opening})]
    for index, block in enumerate(answer.content):
        events.extend(_block_events(index, block))
    delta: JsonObject = {"stop_reason": answer.stop_reason, "stop_sequence": None}
    closing: JsonObject = {"output_tokens": answer.usage["output_tokens"]}
    events.append(SseEvent("message_delta", {"type": "message_delta", "delta": delta, "usage": closing}))
    events.append(SseEvent("message_stop", {"type": "message_stop"}))
    return events


def labels(content_types: Iterable[str]) -> list[str]:
    """The labels that a reply with such blocks has, each once and in order: what `after` and `hold` may name."""
    blocks = [
        f"content_block_{part}:{index}"
        for index, kind in enumerate(content_types)
        for part in (("start", "delta", "stop") if kind in _STREAMED else ("start", "stop"))
    ]
    return ["message_start", *blocks, "message_delta", "message_stop"]


def cut(events: list[SseEvent], after: str) -> list[SseEvent]:
    """The events up to the first one called `after`, itself included; all of them if there is none."""
    for position, event in enumerate(events):
        if event.label == after:
            return events[: position + 1]
    return events


def _block_events(index: int, block: JsonObject) -> Iterator[SseEvent]:
    empty, deltas = _opening(block)
    yield SseEvent("content_block_start", {"type": "content_block_start", "index": index, "content_block": empty})
    for delta in deltas:
        yield SseEvent("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
    yield SseEvent("content_block_stop", {"type": "content_block_stop", "index": index})


def _opening(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """The block as it starts, and the deltas that complete it. Blocks of other types come whole."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {**block, "text": ""}, _deltas("text_delta", "text", text)
        case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
            signed: JsonObject = {"type": "signature_delta", "signature": signature}
            deltas = _deltas("thinking_delta", "thinking", text) if text else []
            return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
        case {"type": "tool_use", "input": dict(value)}:
            first: JsonObject = {"type": "input_json_delta", "partial_json": ""}
            rest = _deltas("input_json_delta", "partial_json", orjson.dumps(value).decode())
            return {**block, "input": {}}, [first, *rest]
        case _:
            return block, []


_STREAMED = frozenset({"text", "thinking", "tool_use"})
"""Block types that come in deltas."""


def _deltas(kind: str, field: str, text: str) -> list[JsonObject]:
    size = max(SHORTEST_PIECE, -(-len(text) // PIECES))
    pieces: list[JsonValue] = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    return [{"type": kind, field: piece} for piece in pieces]
