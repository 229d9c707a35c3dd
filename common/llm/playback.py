"""What a script answers to one attempt of one call: the same for a replayed job and for the stand-in. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.kinds import Kind
from celeriac.common.llm.client import ReplayFailed
from celeriac.common.llm.fingerprint import fingerprint
from celeriac.common.llm.script import (
    TASK_REFERENCE,
    CallId,
    Fault,
    Script,
    ScriptLine,
    digest,
    references,
    tool_use_id,
)
from celeriac.common.llm.sse_script import Answer, SseEvent, cut, expand, sign

Served = Mapping[tuple[str, int, int], int]
"""How often each call (path, run, turn) was asked."""
_STEP = re.compile(r"(?P<parent>.*)/(?:(?P<run>\d+):)?(?P<turn>\d+)\.(?P<block>\d+)")


@dataclass(frozen=True, slots=True)
class Playback:
    """One answer, ready to be streamed."""

    answer: Answer
    events: list[SseEvent]
    """All that are sent, in order: for a fault inside the stream those up to it."""
    fault: Fault | None
    """What happens after the events; one with `refused` comes instead of them."""
    pace_seconds: float
    hold: str | None


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is who in one running session: what `{{task:PATH}}` is resolved with."""

    script: Script
    session: TaskId
    served: Served

    def task(self, path: str) -> TaskId:
        """The id of the task at this path. Raises ReplayFailed if no block has dispatched it."""
        if path == "s":
            return self.session
        step = _STEP.fullmatch(path)
        if step is None:
            raise ReplayFailed(f"replay names the task {path!r}, which is no path")
        call = CallId(step["parent"], int(step["run"] or 1), int(step["turn"]))
        block = int(step["block"])
        attempt = self.served.get(call, 0)
        kind = self._kind(call, attempt, block) if attempt else None
        if kind is None:
            raise ReplayFailed(f"replay names the task {path}, but block {block} of {call} has not dispatched one")
        return ids.child(self.task(call.path), kind, tool_use_id(call, block, attempt))

    def _kind(self, call: CallId, attempt: int, block: int) -> Kind | None:
        content = self.script.line(call, attempt).reply.content
        if block >= len(content) or content[block].get("type") != "tool_use":
            return None
        value = content[block]["input"]
        kind = value.get("kind", Kind.AGENT.value) if isinstance(value, dict) else None
        return Kind(kind) if isinstance(kind, str) and kind in set(Kind) else None

    def resolve(self, value: JsonValue) -> JsonValue:
        """The value with every `{{task:PATH}}` of its strings replaced. Raises ReplayFailed."""
        match value:
            case str():
                return TASK_REFERENCE.sub(lambda match: self.task(match[1]), value)
            case list():
                return [self.resolve(item) for item in value]
            case dict():
                return {key: self.resolve(item) for key, item in value.items()}
            case _:
                return value


def names_tasks(line: ScriptLine) -> bool:
    """Whether a Cast is needed to play the line."""
    return any(references(block) for block in line.reply.content)


def check_request(line: ScriptLine, call: CallId, messages: Sequence[JsonObject]) -> None:
    """Raises ReplayFailed if the request is not the one that the line was written for."""
    text = last_user_text(messages) if line.entry.expect else ""
    for pattern in line.entry.expect:
        if re.search(pattern, text) is None:
            raise ReplayFailed(f"replay diverged at {call}: expected /{pattern}/ in the last user message")
    if line.entry.fp is not None and (actual := fingerprint(messages)) != line.entry.fp:
        raise ReplayFailed(f"replay diverged at {call}: the messages have fingerprint {actual}, not {line.entry.fp}")


def play(line: ScriptLine, call: CallId, attempt: int, model: str, cast: Cast | None) -> Playback:
    """The answer of this line to this attempt. `cast` may be None if the line names no tasks."""
    entry = line.entry
    content = tuple(_served_block(block, call, index, attempt, cast) for index, block in enumerate(line.reply.content))
    usage: JsonObject = {**line.reply.usage.model_dump()}
    answer = Answer("msg_" + digest(*call, attempt), model, content, line.reply.stop_reason, usage)
    events = expand(answer)
    if entry.fault is not None:
        events = [] if entry.fault.refused else cut(events, entry.fault.after or "message_start")
    return Playback(answer, events, entry.fault, entry.pace_ms / 1000, entry.hold)


def _served_block(block: JsonObject, call: CallId, index: int, attempt: int, cast: Cast | None) -> JsonObject:
    resolved = {key: value if cast is None else cast.resolve(value) for key, value in block.items()}
    if block["type"] == "tool_use":
        return {**resolved, "id": tool_use_id(call, index, attempt)}
    if block["type"] == "thinking":
        return {**resolved, "signature": block.get("signature") or sign(str(resolved["thinking"]))}
    return resolved


def last_user_text(messages: Sequence[JsonObject]) -> str:
    """All text of the last user message, that of its tool results too, one block a line."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return "\n".join(_texts(message.get("content")))
    return ""


def _texts(content: JsonValue) -> list[str]:
    match content:
        case str():
            return [content]
        case list():
            return [text for item in content for text in _texts(item)]
        case {"type": "text", "text": str(text)}:
            return [text]
        case {"type": "tool_result", "content": inner}:
            return _texts(inner)
        case _:
            return []
