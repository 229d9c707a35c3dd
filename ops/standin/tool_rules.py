"""Rules for `tools`, `tool_choice` and `thinking`: what a request offers the model. Pure."""

import re

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.ops.standin.verdict import (
    TOOL_NAME,
    Context,
    Refusal,
    check_cache_control,
    check_optional,
    is_whole,
    need_field,
    need_identifier,
    need_list,
    need_object,
    need_text,
)

OLDER_NAME_LENGTH = 64
"""Characters of a tool name that every endpoint takes."""
SMALLEST_BUDGET = 1024
"""Tokens of thinking."""
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_COMBINERS = ("oneOf", "allOf", "anyOf")
_JSON_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def check_tools(body: JsonObject, context: Context) -> list[str]:
    """Check the definitions; returns their names. Raises Refusal."""
    names: list[str] = []
    for index, raw in enumerate(need_list([] if body.get("tools") is None else body["tools"], "tools")):
        place = f"tools.{index}"
        tool = need_object(raw, place)
        if tool.get("type") in {None, "custom"}:
            names.append(_check_custom(tool, f"{place}.custom", context))
        else:
            need_text(tool, "type", place)
            names.append(str(tool.get("name") or tool["type"]))
        check_cache_control(tool, place, context)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise Refusal(f"tools: Tool names must be unique ({doubled[0]} stands more than once)")
    return names


def _check_custom(tool: JsonObject, place: str, context: Context) -> str:
    name = need_identifier(tool, "name", place, TOOL_NAME)
    if len(name) > OLDER_NAME_LENGTH:
        context.warnings.append(f"{place}.name: more than {OLDER_NAME_LENGTH} characters; some endpoints refuse it")
    check_optional(tool, "description", str, place)
    _check_schema(
        need_object(need_field(tool, "input_schema", place), f"{place}.input_schema"), f"{place}.input_schema"
    )
    return name


def _check_schema(schema: JsonObject, place: str) -> None:
    if need_field(schema, "type", place) != "object":
        raise Refusal(f"{place}.type: Input should be 'object'")
    used = [name for name in _COMBINERS if name in schema]
    if used:
        raise Refusal(f"{place}: input_schema does not support oneOf, allOf, or anyOf at the top level ({used[0]})")
    required = schema.get("required")
    if required is not None and not all(isinstance(name, str) for name in need_list(required, f"{place}.required")):
        raise Refusal(f"{place}.required: JSON schema is invalid; names must be strings")
    properties = schema.get("properties")
    for name, value in need_object({} if properties is None else properties, f"{place}.properties").items():
        if _PROPERTY.fullmatch(name) is None:
            raise Refusal(f"{place}.properties: Property keys should match pattern '^{_PROPERTY.pattern}$' ({name!r})")
        _check_property(value, f"{place}.properties.{name}")


def _check_property(value: JsonValue, place: str) -> None:
    """Only what is plainly not a JSON schema."""
    if isinstance(value, bool):
        return
    declared = need_object(value, place).get("type")
    for kind in declared if isinstance(declared, list) else [] if declared is None else [declared]:
        if kind not in _JSON_TYPES:
            raise Refusal(f"{place}.type: JSON schema is invalid; {kind!r} is no type")


def check_tool_choice(body: JsonObject, names: list[str], *, thinking: bool) -> None:
    """The choice must name what is offered, and cannot force a tool while the model thinks. Raises Refusal."""
    if body.get("tool_choice") is None:
        return
    choice = need_object(body["tool_choice"], "tool_choice")
    kind = need_text(choice, "type", "tool_choice")
    if kind not in {"auto", "any", "tool", "none"}:
        raise Refusal(f"tool_choice: Input tag '{kind}' is not one of 'auto', 'any', 'tool', 'none'")
    check_optional(choice, "disable_parallel_tool_use", bool, "tool_choice")
    if not names:
        raise Refusal("tool_choice: may only be specified while providing `tools`")
    if kind == "tool" and need_text(choice, "name", "tool_choice") not in names:
        raise Refusal(f"tool_choice.name: Tool '{choice['name']}' not found in provided tools")
    if thinking and kind in {"any", "tool"}:
        raise Refusal("tool_choice: Thinking may not be enabled when tool_choice forces tool use")


def check_thinking(body: JsonObject, max_tokens: int) -> str:
    """Check the thinking parameter; returns its type, `disabled` if there is none. Raises Refusal."""
    if body.get("thinking") is None:
        return "disabled"
    thinking = need_object(body["thinking"], "thinking")
    kind = need_text(thinking, "type", "thinking")
    if kind not in {"enabled", "disabled", "adaptive", "between_tools"}:
        raise Refusal(f"thinking: Input tag '{kind}' is not one of 'adaptive', 'between_tools', 'disabled', 'enabled'")
    if kind == "enabled":
        _check_budget(need_field(thinking, "budget_tokens", "thinking"), max_tokens)
        _check_sampling(body)
    return kind


def _check_budget(budget: JsonValue, max_tokens: int) -> None:
    if not is_whole(budget):
        raise Refusal("thinking.budget_tokens: Input should be a valid integer")
    tokens = int(str(budget))
    if tokens < SMALLEST_BUDGET:
        raise Refusal(f"thinking.budget_tokens: Input should be greater than or equal to {SMALLEST_BUDGET}")
    if tokens >= max_tokens:
        raise Refusal("max_tokens: `max_tokens` must be greater than `thinking.budget_tokens`")


def _check_sampling(body: JsonObject) -> None:
    if body.get("temperature") not in {None, 1}:
        raise Refusal("temperature: may only be set to 1 when thinking is enabled")
    if body.get("top_k") is not None:
        raise Refusal("top_k: must be unset when thinking is enabled")
