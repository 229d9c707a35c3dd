"""What the validator says, and the words its rules share. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.contract.json import JsonObject, JsonValue

IDENTIFIER = re.compile(r"[a-zA-Z0-9_-]+")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


class Refusal(CeleriacError):
    """The request breaks a rule; the text says which, as the real API does: `place: what`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the Messages API would take a request."""

    valid: bool
    status: int
    """HTTP status: 200 or 400."""
    warnings: tuple[str, ...] = ()
    """What only some models or endpoints take."""
    reason: str = ""
    """Why not; empty if valid."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules know and note while they go through one request."""

    signatures: Mapping[str, str]
    """Signatures that were given out, with the thinking text that each belongs to."""
    warnings: list[str] = field(default_factory=list)
    cache_marks: list[str] = field(default_factory=list)
    """The time to live of each cache_control found, in prompt order."""


def need_object(value: JsonValue, place: str) -> JsonObject:
    """The value, if it is an object. Raises Refusal."""
    if not isinstance(value, dict):
        raise Refusal(f"{place}: Input should be a valid dictionary")
    return value


def need_list(value: JsonValue, place: str) -> list[JsonValue]:
    """The value, if it is a list. Raises Refusal."""
    if not isinstance(value, list):
        raise Refusal(f"{place}: Input should be a valid list")
    return value


def need_field(holder: JsonObject, name: str, place: str) -> JsonValue:
    """A field that must be there. Raises Refusal."""
    if name not in holder:
        raise Refusal(f"{place}.{name}: Field required")
    return holder[name]


def need_text(holder: JsonObject, name: str, place: str) -> str:
    """A field that must be a string. Raises Refusal."""
    value = need_field(holder, name, place)
    if not isinstance(value, str):
        raise Refusal(f"{place}.{name}: Input should be a valid string")
    return value


def need_identifier(holder: JsonObject, name: str, place: str, pattern: re.Pattern[str] = IDENTIFIER) -> str:
    """A field that must match the pattern. Raises Refusal."""
    value = need_text(holder, name, place)
    if pattern.fullmatch(value) is None:
        raise Refusal(f"{place}.{name}: String should match pattern '^{pattern.pattern}$'")
    return value


def only(holder: JsonObject, allowed: frozenset[str], place: str) -> None:
    """Refuse fields that this object does not have. Raises Refusal."""
    extra = sorted(holder.keys() - allowed)
    if extra:
        raise Refusal(f"{place}.{extra[0]}: Extra inputs are not permitted")


def is_whole(value: JsonValue) -> bool:
    """Whether the value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_optional(holder: JsonObject, name: str, kind: type, place: str) -> None:
    """A field that may be missing or null, but has the type otherwise. Raises Refusal."""
    value = holder.get(name)
    if value is not None and not isinstance(value, kind):
        raise Refusal(f"{place}.{name}: Input should be a valid {kind.__name__}")


def check_cache_control(holder: JsonObject, place: str, context: Context) -> None:
    """Note a cache mark. Raises Refusal if it is malformed."""
    if holder.get("cache_control") is None:
        return
    place = f"{place}.cache_control"
    mark = need_object(holder["cache_control"], place)
    only(mark, frozenset({"type", "ttl"}), place)
    if mark.get("type") != "ephemeral":
        raise Refusal(f"{place}.type: Input should be 'ephemeral'")
    ttl = mark.get("ttl") or "5m"
    if ttl not in {"5m", "1h"}:
        raise Refusal(f"{place}.ttl: Input should be '5m' or '1h'")
    context.cache_marks.append(str(ttl))
