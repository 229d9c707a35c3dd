"""Words for people: one line an event, one line a task. Pure text; everything shown is made harmless first."""

import json
from collections.abc import Iterable

from celeriac.common.contract import notification
from celeriac.common.contract.errors import BadNotification
from celeriac.common.contract.events import AssistantEvent, Event, ResultEvent, SystemEvent, UserEvent
from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.messages import Origin
from celeriac.common.contract.presence import Presence
from celeriac.common.contract.task import TERMINAL, Record
from celeriac.common.contract.tool_names import AGENT_TOOL
from celeriac.coordinator.jobs import JobResult, TaskSummary
from celeriac.coordinator.words import brief, duration

_TELLING = ("command", "file_path", "pattern", "description", "to", "task_id", "path", "kind")
"""Input fields that say best what a call is about, best first."""


PRESENCE_TEXTS: dict[str, str] = {
    Presence.ALIVE: "it is heard of again",
    Presence.SILENT: "its lease is renewed, but no token and no tool output has come for a while",
    Presence.PARKED: "its slot is free until it is woken",
    Presence.WAITING_HUMAN: "it waits for an answer",
    Presence.LOST: "its worker is not heard of; another one will take it over",
}
"""What each presence means to people."""


def describe_call(block: JsonObject) -> str:
    """`Bash: pytest -q` for a tool_use block."""
    name, given = block.get("name"), block.get("input")
    if not isinstance(given, dict):
        return brief(str(name))
    fields = ("description", *_TELLING) if name == AGENT_TOOL else _TELLING
    value = next((given[field] for field in fields if isinstance(given.get(field), str)), None)
    return brief(f"{name}: {value if value is not None else json.dumps(given, ensure_ascii=False)}")


def block_text(block: JsonObject) -> str:
    """The text of a text or tool_result block, '' for others."""
    if block.get("type") == "text":
        return str(block.get("text", ""))
    return content_text(block.get("content")) if block.get("type") == "tool_result" else ""


def content_text(content: JsonValue) -> str:
    """Text of a tool_result's content: a string or blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))


_TELLING_ORIGINS = frozenset({Origin.NOTIFICATION.value, Origin.TOOLS.value})
"""Lines that may hold notifications: those that arrived beside tool results are in a line of `tools`."""


def readable(text: str, origin: str) -> str:
    """A user line's text as people read it: what a person typed is never shown as a notification (C85)."""
    return decoded(text) if origin in _TELLING_ORIGINS else text


def decoded(text: str) -> str:
    """A notification as people read it, any other text as it is."""
    if not text.lstrip().startswith(notification.OPENING_TAG):
        return text
    try:
        told = notification.parse(text)
    except BadNotification:
        return text
    usage = told.usage
    counts = f" ({usage.total_tokens:,} tokens, {duration(usage.duration_ms)})" if usage is not None else ""
    head = f"[{told.task_id} {told.status}] {told.summary}{counts}"
    return head if told.result is None else f"{head}\n{told.result}"


def event_lines(event: Event, title: str) -> Iterable[str]:
    """What the plain view says about one event: state changes, calls, results."""
    match event:
        case SystemEvent():
            yield from _prefixed(event.task_id, event.run, [_system(event, title)])
        case AssistantEvent():
            yield from _prefixed(event.task_id, event.run, map(_said, event.message.content))
        case UserEvent():
            yield from _prefixed(event.task_id, event.run, (_heard(block, event) for block in event.message.content))
        case ResultEvent():
            yield from _prefixed(event.task_id, event.run, [_ended(event, title)])
        case _:
            return


def _prefixed(task_id: str, run: int, texts: Iterable[str]) -> Iterable[str]:
    where = task_id if run == 1 else f"{task_id} run {run}"
    return (f"{where}  {text}" for text in texts if text)


def _system(event: SystemEvent, title: str) -> str:
    if event.subtype == "init":
        return ""  # for programs
    if event.subtype == "api_retry":
        return _retry(event.data)
    state, presence = event.data.get("state"), event.data.get("presence")
    if isinstance(state, str):
        # The end of a run is told by its result, with the reason and what it used.
        return "" if state in TERMINAL else f"{state}  {brief(title)}"
    if isinstance(presence, str):
        return f"{presence}: {PRESENCE_TEXTS.get(presence, '')}  {brief(title)}"
    reason = event.data.get("reason") or event.data.get("why") or event.data.get("error")
    return brief(f"{event.subtype}: {reason}" if reason else event.subtype)


def _retry(data: JsonObject) -> str:
    wait = data.get("retry_delay_ms")
    when = f"again in {duration(wait)}" if isinstance(wait, int) and wait else "again now"
    parked = ", parked until then" if data.get("parked") else ""
    return brief(f"the model is asked {when}{parked}: {data.get('message')} (try {data.get('attempt')})")


def _said(block: JsonObject) -> str:
    return describe_call(block) if block.get("type") == "tool_use" else brief(block_text(block))


def _heard(block: JsonObject, event: UserEvent) -> str:
    if block.get("type") == "tool_result":
        mark = "error" if block.get("is_error") else "result"
        return brief(f"{mark}: {block_text(block)}")
    return brief(f"{event.origin}: {readable(block_text(block), event.origin)}")


def _ended(event: ResultEvent, title: str) -> str:
    why = f" ({brief(event.reason)})" if event.reason else ""
    spent = f"{event.usage.total_tokens:,} tokens, {duration(event.duration_ms)}"
    return f"{event.state}{why}  {brief(title)}  {spent}"


def tree_lines(result: JobResult) -> Iterable[str]:
    """The job's tree at its end: one line a task, the session first, then the sum."""
    for task in result.tasks:
        yield task_line(task)
    yield f"total: {result.usage.total_tokens:,} tokens, {duration(result.duration_ms)}"


def task_line(task: TaskSummary) -> str:
    """`a  a-…  completed  2 runs  1,234 tokens  3.2 s  title`."""
    indent = "" if task.task_id.startswith("s-") else "  "
    runs = f"{task.runs} run" if task.runs == 1 else f"{task.runs} runs"
    return (
        f"{indent}{task.kind:<2}  {task.task_id}  {task.state}  {runs}  {task.usage.total_tokens:,} tokens  "
        f"{duration(task.duration_ms)}  {brief(task.title, 80)}"
    )


def activity_of(record: Record) -> str:
    """What a task is doing, in a few words: why it waits, or its last activity."""
    if record.state.terminal:
        return (record.outcome.reason if record.outcome else "") or ""
    if record.presence is Presence.WAITING_HUMAN:
        return "waits for an answer"
    if record.presence is Presence.PARKED and record.park is not None:
        return f"parked: {record.park.why}"
    last = record.activities[-1] if record.activities else ""
    if record.presence is Presence.SILENT:
        since = max(record.progress.token_at, record.progress.tool_at, record.times.started)
        return f"{last} (silent for {duration(record.read_at - since)})".strip()
    return last


def standing(record: Record) -> str:
    """One word for where a task stands: its state, or its presence where that is out of the ordinary."""
    if record.presence in {None, Presence.ALIVE}:
        return record.state.value.partition("_")[0]
    return str(record.presence)
