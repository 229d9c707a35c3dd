"""A fingerprint of a request's messages that is the same for the same job on another day, machine and server."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue

_DROPPED: Final = frozenset({"cache_control"})
"""Not part of what is said."""
_MASKED: Final = frozenset({"id", "tool_use_id", "signature", "usage", "duration_ms"})
"""Fields whose value differs from run to run."""
_SUBSTITUTIONS: Final = (
    (re.compile(r"<usage>.*?</usage>", re.DOTALL), "<usage/>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(?:s|a|r|sh|t|d)-[0-9a-z]{13}(?:[0-9a-z]{13})?\b"), "<id>"),
    (re.compile(r"\b(?:toolu|msg|req)_\w+"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|[+-]\d\d:?\d\d))?)?"), "<time>"),
    (re.compile(r"\b\d\d?:\d\d:\d\d(?:[.,]\d+)?"), "<time>"),
    (re.compile(r"\b1\d{9}(?:\d{3})?\b"), "<time>"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ns|[µu]s|ms|s|secs?|seconds?|m|mins?|minutes?|h|hours?)\b"), "<duration>"),
    (re.compile(r"\b\d[\d,]* tokens?\b"), "<usage>"),
    (re.compile(r"(?<![\w/.:~<-])/[\w.@+~-]+(?:/[\w.@+~-]*)*"), "<path>"),
)
"""Ids, times (ISO, clock, epoch), durations, usage, absolute paths; in this order, as a path may hold an id."""


def fingerprint(messages: Sequence[JsonObject]) -> str:
    """`sha256:` and 64 hex digits over the messages, with everything masked that is another each time."""
    masked = [_mask(message) for message in messages]
    return "sha256:" + hashlib.sha256(orjson.dumps(masked, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _mask(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return mask_text(value)
        case list():
            return [_mask(item) for item in value]
        case dict():
            return {key: "<>" if key in _MASKED else _mask(item) for key, item in value.items() if key not in _DROPPED}
        case _:
            return value


def mask_text(text: str) -> str:
    """The text with its changing parts replaced by their kind."""
    for pattern, kind in _SUBSTITUTIONS:
        text = pattern.sub(kind, text)
    return text
