"""One validator of Messages API requests, for the stand-in and for `celeriac dev validate`. Pure; knows no server.

It refuses what the real API refuses, in general rules; what only some models or endpoints refuse is a warning. The
limit of 32 MB is the server's edge, not part of it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.ops.standin.blocks import check_text_block
from celeriac.ops.standin.conversation import check_end, check_messages, check_pairs, check_thoughts
from celeriac.ops.standin.tool_rules import check_thinking, check_tool_choice, check_tools
from celeriac.ops.standin.verdict import (
    Context,
    Refusal,
    Verdict,
    check_optional,
    is_whole,
    need_field,
    need_object,
    need_text,
)

__all__ = ["WINDOW_TOKENS", "Refusal", "Verdict", "validate"]

WINDOW_TOKENS = 200_000
"""What a model can read, if nothing else is said."""
BYTES_A_TOKEN = 4
"""A rough count is enough: whoever tests the limit goes far over it."""
CACHE_MARKS = 4
"""At most so many blocks with cache_control, over tools, system and messages (MODEL_API, Rules)."""
_KNOWN = frozenset(
    {
        "model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "stream", "metadata",
        "temperature", "top_k", "top_p", "stop_sequences", "service_tier", "container", "context_management",
        "output_config", "output_format", "mcp_servers", "inference_geo", "cache_control",
    }
)  # fmt: skip


def validate(
    body: bytes | JsonObject,
    *,
    window: int = WINDOW_TOKENS,
    signatures: Mapping[str, str] = MappingProxyType({}),
) -> Verdict:
    """Judge one request body. `window` in tokens; `signatures`: those known, each with the thinking it belongs to."""
    context = Context(signatures)
    try:
        request = _parsed(body)
        _check(request, context, window)
    except Refusal as refusal:
        return Verdict(valid=False, status=400, warnings=tuple(context.warnings), reason=str(refusal))
    return Verdict(valid=True, status=200, warnings=tuple(context.warnings))


def _parsed(body: bytes | JsonObject) -> JsonObject:
    try:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)  # a lone surrogate is refused by both ways
        value: JsonValue = orjson.loads(raw)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise Refusal(f"The request body is not valid JSON: {error}") from error
    return need_object(value, "body")


def _check(body: JsonObject, context: Context, window: int) -> None:
    if not need_text(body, "model", "body").strip():
        raise Refusal("model: String should have at least 1 character")
    max_tokens = _max_tokens(body)
    _check_parameters(body, context)
    thinking = check_thinking(body, max_tokens)
    names = check_tools(body, context)
    check_tool_choice(body, names, thinking=thinking in {"enabled", "adaptive"})
    _check_system(body, context)
    turns = check_messages(body, context)
    _check_cache(context)
    check_pairs(turns, context, tools=bool(names))
    check_end(turns, context)
    check_thoughts(turns, context, mode=thinking)
    _check_length(body, max_tokens, window)


def _max_tokens(body: JsonObject) -> int:
    value = need_field(body, "max_tokens", "body")
    if not is_whole(value):
        raise Refusal("max_tokens: Input should be a valid integer")
    tokens = int(str(value))
    if tokens < 1:
        raise Refusal("max_tokens: Input should be greater than or equal to 1")
    return tokens


def _check_parameters(body: JsonObject, context: Context) -> None:
    context.warnings.extend(f"{name}: unknown field" for name in sorted(body.keys() - _KNOWN))
    check_optional(body, "stream", bool, "body")
    check_optional(body, "metadata", dict, "body")
    check_optional(body, "stop_sequences", list, "body")
    sequences = body.get("stop_sequences")
    for index, text in enumerate(sequences if isinstance(sequences, list) else ()):
        if not isinstance(text, str) or not text.strip():
            raise Refusal(f"stop_sequences.{index}: each stop sequence must contain non-whitespace")
    for name in ("temperature", "top_p"):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise Refusal(f"{name}: range: 0..1")
    if body.get("top_k") is not None and not is_whole(body["top_k"]):
        raise Refusal("top_k: Input should be a valid integer")


def _check_system(body: JsonObject, context: Context) -> None:
    system = body.get("system")
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        raise Refusal("system: Input should be a valid string or list")
    for index, raw in enumerate(system):
        block = need_object(raw, f"system.{index}")
        if need_text(block, "type", f"system.{index}") != "text":
            raise Refusal(f"system.{index}.type: Input should be 'text'")
        check_text_block(block, f"system.{index}", context)


def _check_cache(context: Context) -> None:
    marks = context.cache_marks
    if len(marks) > CACHE_MARKS:
        raise Refusal(f"A maximum of {CACHE_MARKS} blocks with cache_control may be provided. Found {len(marks)}.")
    if "5m" in marks and "1h" in marks[marks.index("5m") :]:
        raise Refusal("cache_control: a ttl of 1h must not come after a ttl of 5m")


def _check_length(body: JsonObject, max_tokens: int, window: int) -> None:
    parts = (body.get("tools"), body.get("system"), body["messages"])
    tokens = sum(len(text.encode()) for part in parts for text in _texts(part)) // BYTES_A_TOKEN
    if tokens > window:
        raise Refusal(f"prompt is too long: {tokens} tokens > {window} maximum")
    if tokens + max_tokens > window:
        raise Refusal(
            f"input length and `max_tokens` exceed context limit: {tokens} + {max_tokens} > {window}, "
            "decrease input length or `max_tokens` and try again"
        )


def _texts(value: JsonValue) -> Iterator[str]:
    """Every string that a model would read; encoded files are counted otherwise. Any depth of nesting is fine."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case list() as items:
                waiting.extend(items)
            case {"type": "base64"}:
                pass
            case dict() as fields:
                waiting.extend(fields.values())
