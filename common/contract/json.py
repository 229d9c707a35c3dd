"""JSON as typed values. The one name for `anything that JSON can hold`."""

from typing import TypeAlias

from pydantic import JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object whose shape belongs to somebody else (a model's block, a tool's input)."""

__all__ = ["JsonObject", "JsonValue"]
