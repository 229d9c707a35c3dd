"""The tool set of one run, assembled from the closed set of its form (SPEC 6)."""

from collections.abc import Iterable, Mapping
from functools import cache

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import allowed_for
from celeriac.common.tools.base import AnyTool, Restart, ToolInput


class Toolbox:
    """Tools by the name on the wire. What the form does not allow is not taken in."""

    def __init__(self, tools: Iterable[AnyTool], *, kind: Kind) -> None:
        """`kind` decides which names are allowed."""
        allowed = allowed_for(kind)
        self._tools: Mapping[str, AnyTool] = {tool.wire_name: tool for tool in tools if tool.wire_name in allowed}
        self._definitions = orjson.dumps([_definition(tool) for tool in self._tools.values()])

    def find(self, name: str) -> AnyTool | None:
        """The tool of this name, if the run has it."""
        return self._tools.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which the model sees them."""
        return tuple(self._tools)

    def nudges(self, memory: dict[str, Value], idle: dict[str, int]) -> tuple[str, ...]:
        """The reminders that are due, given the turns since each tool was called; a said one counts anew."""
        due = []
        for name, tool in self._tools.items():
            if (text := tool.nudge(memory, idle.get(name, 0))) is not None:
                due.append(text)
                idle[name] = 0
        return tuple(due)

    def definitions(self) -> bytes:
        """The JSON array of `{name, description, input_schema}`, the same bytes for the whole run."""
        return self._definitions

    def restart_of(self, name: str) -> Restart:
        """What a new owner does with a started call; an unknown tool never ran."""
        tool = self.find(name)
        return Restart.RERUN if tool is None else tool.restart


def _definition(tool: AnyTool) -> JsonObject:
    tool_input: type[ToolInput] = tool.input
    return {"name": tool.wire_name, "description": tool.description, "input_schema": _schema(tool_input)}


@cache
def _schema(tool_input: type[ToolInput]) -> JsonValue:
    """Made once in a process: it costs some milliseconds, and hundreds of runs may begin at once."""
    return _without_titles(tool_input.model_json_schema())


def _without_titles(schema: JsonValue) -> JsonValue:
    """A schema without the titles that pydantic makes of field names: tokens that tell nothing."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(each) for name, each in value.items()}
        if key == "properties" and isinstance(value, dict)
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }
