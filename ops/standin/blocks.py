"""Rules for single content blocks: their fields, their texts, their images. Pure."""

import base64
import binascii
from collections.abc import Callable

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.ops.standin.verdict import (
    TOOL_NAME,
    Context,
    Refusal,
    check_cache_control,
    check_optional,
    need_field,
    need_identifier,
    need_list,
    need_object,
    need_text,
    only,
)

IMAGE_LIMIT_BYTES = 5 * 1024 * 1024
"""Of one decoded image."""
_PDF_MAGIC = b"%PDF"
_OPAQUE = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "container_upload",
        "mcp_tool_use",
        "mcp_tool_result",
        "compaction",
    }
)
"""Blocks of tools that the server itself runs: known, and sent back as they came."""
_ROLES: dict[str, frozenset[str]] = {
    "image": frozenset({"user"}),
    "document": frozenset({"user"}),
    "search_result": frozenset({"user"}),
    "tool_result": frozenset({"user"}),
    "tool_use": frozenset({"assistant"}),
    "thinking": frozenset({"assistant"}),
    "redacted_thinking": frozenset({"assistant"}),
    "server_tool_use": frozenset({"assistant"}),
    "mcp_tool_use": frozenset({"assistant"}),
}
"""Who may send a block; text and what is not listed: both."""
_IN_RESULTS = frozenset({"text", "image", "document", "search_result", "tool_reference"})


def check_content(content: JsonValue, role: str, place: str, context: Context) -> None:
    """The content of a message that is not exempt from the rules for empty ones. Raises Refusal."""
    if isinstance(content, str):
        check_text(content, place)
        return
    blocks = need_list(content, place)
    if not blocks:
        raise Refusal(
            f"{place}: all messages must have non-empty content except for the optional final assistant message"
        )
    for index, block in enumerate(blocks):
        _check_block(need_object(block, f"{place}.{index}"), role, f"{place}.{index}", context)


def check_text(text: str, place: str) -> None:
    """A text that is sent. Raises Refusal."""
    if not text:
        raise Refusal(f"{place}: text content blocks must be non-empty")
    if not text.strip():
        raise Refusal(f"{place}: text content blocks must contain non-whitespace text")


def check_text_block(block: JsonObject, place: str, context: Context) -> None:
    """A text block, in a message, a tool result or the system prompt. Raises Refusal."""
    only(block, frozenset({"type", "text", "cache_control", "citations"}), place)
    check_text(need_text(block, "text", place), f"{place}.text")
    check_optional(block, "citations", list, place)
    check_cache_control(block, place, context)


def _check_block(block: JsonObject, role: str, place: str, context: Context) -> None:
    kind = need_text(block, "type", place)
    if kind in _OPAQUE:
        check_cache_control(block, place, context)
    elif kind not in _CHECKS:
        known = ", ".join(f"'{name}'" for name in sorted(_CHECKS.keys() | _OPAQUE))
        raise Refusal(
            f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {known}"
        )
    if role not in _ROLES.get(kind, {role}):
        raise Refusal(f"{place}: {kind} blocks are not allowed in {role} messages")
    if role == "system" and kind != "text":
        raise Refusal(f"{place}: only text is allowed in system messages")
    if kind in _CHECKS:
        _CHECKS[kind](block, place, context)


def _check_tool_use(block: JsonObject, place: str, context: Context) -> None:
    only(block, frozenset({"type", "id", "name", "input", "cache_control", "caller", "toolset_name"}), place)
    need_identifier(block, "id", place)
    need_identifier(block, "name", place, TOOL_NAME)
    need_object(need_field(block, "input", place), f"{place}.input")
    check_cache_control(block, place, context)


def _check_tool_result(block: JsonObject, place: str, context: Context) -> None:
    fields = frozenset({"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"})
    only(block, fields, place)
    need_identifier(block, "tool_use_id", place)
    check_optional(block, "is_error", bool, place)
    check_cache_control(block, place, context)
    content = block.get("content")
    if block.get("is_error") and not content:
        raise Refusal(f"{place}: content cannot be empty if `is_error` is true")
    if content is None or isinstance(content, str):
        return
    for index, inner in enumerate(need_list(content, f"{place}.content")):
        inner_place = f"{place}.content.{index}"
        inner_block = need_object(inner, inner_place)
        kind = need_text(inner_block, "type", inner_place)
        if kind not in _IN_RESULTS:
            raise Refusal(f"{inner_place}: Input tag '{kind}' is not one of a tool_result's")
        _CHECKS[kind](inner_block, inner_place, context)


def _check_thinking(block: JsonObject, place: str, context: Context) -> None:
    del context
    only(block, frozenset({"type", "thinking", "signature"}), place)
    need_text(block, "thinking", place)
    if not need_text(block, "signature", place):
        raise Refusal(f"{place}: Invalid `signature` in `thinking` block")


def _check_redacted(block: JsonObject, place: str, context: Context) -> None:
    del context
    only(block, frozenset({"type", "data"}), place)
    if not need_text(block, "data", place):
        raise Refusal(f"{place}: Invalid `data` in `redacted_thinking` block")


def _check_image(block: JsonObject, place: str, context: Context) -> None:
    only(block, frozenset({"type", "source", "cache_control"}), place)
    check_cache_control(block, place, context)
    source = need_object(need_field(block, "source", place), f"{place}.source")
    place = f"{place}.source"
    if _check_reference(source, place):
        return
    if source.get("type") != "base64":
        raise Refusal(f"{place}: Input tag {source.get('type')!r} is not one of 'base64', 'url', 'file'")
    declared = need_text(source, "media_type", place)
    if declared not in _SNIFFERS:
        raise Refusal(f"{place}.media_type: Input should be one of {', '.join(map(repr, _SNIFFERS))}")
    data = _decoded(source, place)
    if len(data) > IMAGE_LIMIT_BYTES:
        raise Refusal(f"{place}: image exceeds 5 MB maximum: {len(data)} bytes > {IMAGE_LIMIT_BYTES} bytes")
    actual = next((name for name, fits in _SNIFFERS.items() if fits(data)), None)
    if actual is None:
        raise Refusal(f"{place}: Could not process image")
    if actual != declared:
        raise Refusal(
            f"{place}: the image was specified using the {declared} media type, but it appears to be {actual}"
        )


def _check_document(block: JsonObject, place: str, context: Context) -> None:
    only(block, frozenset({"type", "source", "title", "context", "citations", "cache_control"}), place)
    check_cache_control(block, place, context)
    source = need_object(need_field(block, "source", place), f"{place}.source")
    place = f"{place}.source"
    if _check_reference(source, place):
        return
    match source.get("type"):
        case "text":
            check_text(need_text(source, "data", place), f"{place}.data")
        case "content":
            need_field(source, "content", place)
        case "base64":
            if need_text(source, "media_type", place) != "application/pdf":
                raise Refusal(f"{place}.media_type: Input should be 'application/pdf'")
            if _PDF_MAGIC not in _decoded(source, place)[:1024]:
                raise Refusal(f"{place}: The PDF specified was not valid")
        case kind:
            raise Refusal(f"{place}: Input tag {kind!r} is not one of 'base64', 'text', 'content', 'url', 'file'")


def _check_reference(source: JsonObject, place: str) -> bool:
    """Whether the source only names where the data is. Raises Refusal."""
    field = {"url": "url", "file": "file_id"}.get(str(source.get("type")))
    if field is not None and not need_text(source, field, place):
        raise Refusal(f"{place}.{field}: must not be empty")
    return field is not None


def _decoded(source: JsonObject, place: str) -> bytes:
    try:
        data = base64.b64decode(need_text(source, "data", place), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(f"{place}.data: invalid base64 data") from error
    if not data:
        raise Refusal(f"{place}.data: must not be empty")
    return data


def _check_search_result(block: JsonObject, place: str, context: Context) -> None:
    check_cache_control(block, place, context)
    for index, inner in enumerate(need_list(need_field(block, "content", place), f"{place}.content")):
        check_text_block(need_object(inner, f"{place}.content.{index}"), f"{place}.content.{index}", context)


def _check_tool_reference(block: JsonObject, place: str, context: Context) -> None:
    need_text(block, "tool_name", place)
    check_cache_control(block, place, context)


_SNIFFERS: dict[str, Callable[[bytes], bool]] = {
    "image/jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "image/png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "image/gif": lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "image/webp": lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP",
}
"""The bytes that each media type begins with."""
_CHECKS: dict[str, Callable[[JsonObject, str, Context], None]] = {
    "text": check_text_block,
    "tool_use": _check_tool_use,
    "tool_result": _check_tool_result,
    "thinking": _check_thinking,
    "redacted_thinking": _check_redacted,
    "image": _check_image,
    "document": _check_document,
    "search_result": _check_search_result,
    "tool_reference": _check_tool_reference,
}
