"""JSON to and from bytes for the model's side: fast, and no lone surrogate ever leaves or enters the process."""

import json
from typing import cast

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.text import clean_text


def clean(value: JsonValue) -> JsonValue:
    """The value with every string, keys too, cleaned of lone surrogates."""
    match value:
        case str():
            return clean_text(value)
        case list():
            return [clean(item) for item in value]
        case dict():
            return {clean_text(key): clean(item) for key, item in value.items()}
        case _:
            return value


def dumps(value: JsonValue) -> bytes:
    """UTF-8 JSON in the order given. Lone surrogates become U+FFFD; whole numbers may have any size."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate or a number over 64 bits
        return json.dumps(clean(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def loads(text: str | bytes) -> JsonValue:
    """Parse JSON; an escaped lone surrogate becomes U+FFFD. Raises ValueError."""
    try:
        return cast("JsonValue", orjson.loads(text))
    except orjson.JSONDecodeError:  # perhaps only a lone surrogate, which the standard library lets pass
        return clean(cast("JsonValue", json.loads(text, parse_constant=_refuse_constant)))


def loads_object(text: str | bytes) -> JsonObject:
    """Parse a JSON object. Raises ValueError for anything else."""
    value = loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, not {type(value).__name__}")  # noqa: TRY004 - wrong text, not a wrong call
    return value


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")
