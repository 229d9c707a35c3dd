"""The replay format: JSON lines that say what the model answers to which call (INTERFACES, Replay).

One format for replayed jobs, for recordings and for the stand-in's script. A file is checked whole before its use.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from celeriac.common.contract.errors import BadReplay
from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.task import Limits, Mode, Value
from celeriac.common.llm.client import ReplayFailed
from celeriac.common.llm.sse_script import labels

PATH = re.compile(r"s(/(([2-9]|[1-9]\d+):)?[1-9]\d*\.(0|[1-9]\d*))*")
"""`s`, then one `/turn.block` or, from run 2 on, `/run:turn.block` for each dispatch down to the task."""
TASK_REFERENCE = re.compile(r"\{\{task:([^{}]*)\}\}")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_HEADER_HINT = 'the first line must be the header {"v":1,"job":{…}}'


class CallId(NamedTuple):
    """Which call a line answers."""

    path: str
    run: int
    turn: int

    def __str__(self) -> str:
        return f"{self.path} run {self.run} turn {self.turn}"


def _check_path(path: str) -> str:
    if PATH.fullmatch(path) is None:
        raise ValueError(f"{path!r} is no task path (such as s, s/1.0 or s/2:1.0)")
    return path


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str},
    "redacted_thinking": {"data": str},
    "tool_use": {"name": str, "input": dict},
}
_OPTIONAL = {"text": {"citations"}, "thinking": {"signature"}, "tool_use": {"id", "caller"}}


def _check_block(block: JsonObject) -> JsonObject:
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        raise ValueError("a content block needs a type")
    if kind == "tool_result":
        raise ValueError("a model's reply holds no tool_result")
    needed = _FIELDS.get(kind, {})
    for name, expected in needed.items():
        if not isinstance(block.get(name), expected):
            raise ValueError(f"a {kind} block needs {name!r}, {_article(expected)}")  # noqa: TRY004 - pydantic wants it
    unknown = sorted(block.keys() - needed.keys() - _OPTIONAL.get(kind, set()) - {"type"}) if needed else []
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r} in a {kind} block")
    if kind == "tool_use" and TOOL_NAME.fullmatch(str(block["name"])) is None:
        raise ValueError(f"{block['name']!r} is no tool name")
    for reference in references(block):
        _check_path(reference)
    return block


def _article(expected: type) -> str:
    return "an object" if expected is dict else "a string"


def _fault_kind(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class _Strict(Value):
    """No silent conversions: a wrong type in a file is a mistake to be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Count = Annotated[int, Field(ge=0)]
FaultKind = Literal["reset", "stall", "error", "clean_end", "429", "500", "529"]
Path = Annotated[str, AfterValidator(_check_path)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Block = Annotated[JsonObject, AfterValidator(_check_block)]


class Job(_Strict):
    """What the job of this file is; the command line may say it instead."""

    prompt: str = ""
    mode: Mode | None = None
    allowed_tools: tuple[str, ...] = ()
    limits: Limits = Limits()


class Header(_Strict):
    """The first line."""

    v: Literal[1]
    job: Job = Job()


class ReplyUsage(_Strict):
    """Tokens that the answer reports."""

    input_tokens: Count = 0
    cache_creation_input_tokens: Count = 0
    cache_read_input_tokens: Count = 0
    output_tokens: Count = 0


def _usual_stop_reason(data: Mapping[str, object]) -> str:
    content = data.get("content")
    calls = isinstance(content, tuple) and any(block.get("type") == "tool_use" for block in content)
    return "tool_use" if calls else "end_turn"


class Reply(_Strict):
    """A whole answer. Without `stop_reason` it is the usual one; null gives an answer that lacks it."""

    content: tuple[Block, ...]
    stop_reason: str | None = Field(default_factory=_usual_stop_reason)
    usage: ReplyUsage = ReplyUsage()


class Fault(_Strict):
    """A failure instead of an answer, or in the middle of one."""

    kind: Annotated[FaultKind, BeforeValidator(_fault_kind)]
    after: str | None = None
    """The last event that is still sent; for failures inside the stream only, `message_start` if not given."""
    retry_after: Annotated[float, Field(ge=0)] | None = None
    """Seconds, for 429."""
    error_type: str = "api_error"
    """The type inside an `error` event."""

    @property
    def refused(self) -> bool:
        """Whether the answer never begins."""
        return self.kind.isdigit()

    @model_validator(mode="after")
    def _fits(self) -> "Fault":
        if self.refused and self.after is not None:
            raise ValueError(f"a {self.kind} comes before the stream; `after` has no meaning")
        return self


class Entry(_Strict):
    """One line: the answer to one or more attempts of one call."""

    path: Path
    run: Annotated[int, Field(ge=1)]
    turn: Annotated[int, Field(ge=1)]
    fp: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    reply: Reply | None = None
    fault: Fault | None = None
    """With a reply on the same line it cuts that one, else the next reply of the same call."""
    expect: tuple[Pattern, ...] = ()
    follows: tuple[CallId, ...] = ()
    """Calls, each `[path, run, turn]`, that must have been asked before: so tasks that run at once end in one order."""
    pace_ms: Annotated[float, Field(ge=0)] = 0
    """Between two events."""
    repeat: Annotated[int, Field(ge=1)] = 1
    """How many attempts this line answers."""
    hold: str | None = None
    """The stand-in stops after this event until it is released; a replay has nobody to release it and goes on."""

    @model_validator(mode="after")
    def _says_something(self) -> "Entry":
        if self.reply is None and self.fault is None:
            raise ValueError("a line needs a reply or a fault")
        if self.hold is not None and self.fault is not None and self.fault.refused:
            raise ValueError(f"a {self.fault.kind} has no stream to hold")
        return self


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """An entry, where it stands, and the reply that it streams: its own or, for a fault, the one it cuts."""

    number: int
    entry: Entry
    reply: Reply


@dataclass(frozen=True, slots=True)
class Script:
    """A checked replay file."""

    source: str
    header: Header
    lines: Mapping[CallId, tuple[ScriptLine, ...]]

    @property
    def job(self) -> Job:
        """What the header says about the job."""
        return self.header.job

    def line(self, call: CallId, attempt: int) -> ScriptLine:
        """The line for this attempt, counted from 1; after the last one its last reply goes on. Raises ReplayFailed."""
        lines = self.lines.get(call, ())
        last = 0
        for line in lines:
            last += line.entry.repeat
            if attempt <= last:
                return line
        for line in reversed(lines):
            if line.entry.fault is None:
                return line
        raise ReplayFailed(f"replay has no answer for {call}" + (f", attempt {attempt}" if lines else ""))

    def unused(self, served: Mapping[tuple[str, int, int], int]) -> list[str]:
        """One line of text for each line of the file that answered nothing; `served` counts attempts by call."""
        out = []
        for call, lines in self.lines.items():
            before = 0
            for line in lines:
                if served.get(call, 0) <= before:
                    again = f" for attempt {before + 1}" if before else ""
                    out.append(f"line {line.number}: {call} was not asked{again}")
                before += line.entry.repeat
        return out


def tool_use_id(call: CallId, block: int, attempt: int) -> str:
    """The id of the tool_use at position `block` of the answer to this attempt."""
    return "toolu_" + digest(call.path, call.run, call.turn, block, attempt)


def digest(*parts: str | int) -> str:
    """24 hex digits over the parts."""
    return hashlib.sha256(";".join(map(str, parts)).encode()).hexdigest()[:24]


def references(value: JsonValue) -> list[str]:
    """The paths of all `{{task:PATH}}` in the strings of the value."""
    match value:
        case str():
            return TASK_REFERENCE.findall(value)
        case list():
            return [path for item in value for path in references(item)]
        case dict():
            return [path for item in value.values() for path in references(item)]
        case _:
            return []


def parse_script(text: str, source: str) -> Script:
    """Read a replay file. Raises BadReplay with the line that is wrong and why."""
    header: Header | None = None
    entries: dict[CallId, list[tuple[int, Entry]]] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            if header is None:
                header = _parse_header(line)
                continue
            entry = _parse_entry(line)
        except (ValueError, RecursionError) as error:
            raise BadReplay(source, number, _why(error)) from error
        entries.setdefault(CallId(entry.path, entry.run, entry.turn), []).append((number, entry))
    if header is None:
        raise BadReplay(source, 1, f"the file is empty; {_HEADER_HINT}")
    _check_order(source, entries)
    return Script(source, header, {call: _joined(source, listed) for call, listed in entries.items()})


def _parse_header(line: str) -> Header:
    raw = _object(line)
    if "v" not in raw:
        raise ValueError(_HEADER_HINT)
    if raw["v"] != 1 or isinstance(raw["v"], bool):
        raise ValueError(f"version {json.dumps(raw['v'])} of the format is not known; this program reads version 1")
    return Header.model_validate_json(line)


def _parse_entry(line: str) -> Entry:
    raw = _object(line)
    if "v" in raw:
        raise ValueError("a second header; only the first line is one")
    return Entry.model_validate_json(line)


def _object(line: str) -> JsonObject:
    raw = json.loads(line, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    if not isinstance(raw, dict):
        raise ValueError("a line must be a JSON object")  # noqa: TRY004 - wrong text, not a wrong call
    return raw


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    out: JsonObject = {}
    for name, value in pairs:
        if name in out:
            raise ValueError(f"field {name!r} stands twice")
        out[name] = value
    return out


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def _why(error: ValueError | RecursionError) -> str:
    """One line of text for whatever was wrong."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = "unknown field" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        return f"{where}: {text}" if where else text
    return f"not JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)


def _check_order(source: str, entries: Mapping[CallId, list[tuple[int, Entry]]]) -> None:
    """An answer may follow only what the file answers too; else it would wait in vain."""
    for number, entry in (numbered for listed in entries.values() for numbered in listed):
        for call in entry.follows:
            if call not in entries:
                raise BadReplay(source, number, f"it follows {call}, which no line answers")


def _joined(source: str, listed: list[tuple[int, Entry]]) -> tuple[ScriptLine, ...]:
    """Give each line of one call the reply that it streams, and check the events that it names."""
    out = []
    for position, (number, entry) in enumerate(listed):
        later = (other.reply for _, other in listed[position:] if other.reply is not None)
        reply = next(later, Reply(content=()))
        known = labels(str(block["type"]) for block in reply.content)
        named = (entry.fault.after if entry.fault else None, entry.hold)
        for name in named:
            if name is not None and name not in known:
                raise BadReplay(source, number, f"{name!r} is no event of its reply (it has {', '.join(known)})")
        out.append(ScriptLine(number, entry, reply))
    return tuple(out)
