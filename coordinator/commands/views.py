"""`show`, `transcript`: what is stored, for people or as JSON."""

import json
from collections.abc import Iterable

import click

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonValue
from celeriac.common.contract.messages import Line
from celeriac.common.contract.presence import Presence
from celeriac.common.contract.task import Record, Stop
from celeriac.common.settings import Settings
from celeriac.coordinator.commands import options
from celeriac.coordinator.display import activity_of, block_text, describe_call, readable, task_line
from celeriac.coordinator.follow import OutputFormat
from celeriac.coordinator.jobs import summary_of
from celeriac.coordinator.words import brief, duration, harmless


@click.command()
@options.task_id
@options.text_or_json
@options.redis_url
def show(task_id: TaskId, output_format: OutputFormat, redis_url: str | None) -> int:
    """Show one task as it stands; for a job, its whole tree."""
    settings = options.settings_for({"redis.url": redis_url})
    return options.run_async(_show(settings, task_id, output_format))


async def _show(settings: Settings, task_id: TaskId, output: OutputFormat) -> int:
    async with options.connect(settings) as client:
        record, tree = await client.get(task_id), await client.tree(task_id)
    below = tree if record.parent is None else (record,)
    if output is OutputFormat.JSON:
        tasks: list[JsonValue] = [json.loads(task.model_dump_json()) for task in below]
        _print_json({"task": json.loads(record.model_dump_json()), "tree": tasks})
        return 0
    for line in record_lines(record):
        options.streams().answer(line)
    for task in below:
        options.streams().answer(tree_line(task))
    return 0


def tree_line(record: Record) -> str:
    """The line of a task, its presence where that is out of the ordinary, and what it does."""
    unusual = "" if record.presence in {None, Presence.ALIVE} else f"[{record.presence}]"
    return "  ".join(filter(None, (task_line(summary_of(record)), unusual, brief(activity_of(record)))))


def record_lines(record: Record) -> Iterable[str]:
    """The fields that people ask for, one a line."""
    fields = {
        "task": record.task_id,
        "title": brief(record.title),
        "state": record.state.value,
        "presence": str(record.presence or ""),
        "progress": progress_text(record),
        "run": str(record.run),
        "reason": brief(record.outcome.reason) if record.outcome else "",
        "path": record.path,
        "parent": record.parent or "",
        "mode": record.mode.value,
        "allowed": ", ".join(record.tools),
        "workspace": record.workspace.root if record.workspace else "",
        "owner": f"{record.lease.process} ({record.lease.owner})" if record.lease else "",
        "parked": f"{record.park.why} until {record.park.until}" if record.park else "",
        "stop": stop_text(record.stop) if record.stop else "",
        "unread": str(record.unread) if record.unread else "",
        "activity": "; ".join(brief(activity, 60) for activity in record.activities),
    }
    return (f"{name:<10} {value}" for name, value in fields.items() if value)


def progress_text(record: Record) -> str:
    """`token 2.0 s ago, tool 12 s ago, heartbeat 0.4 s ago`; nothing for a run that has ended."""
    if record.state.terminal:
        return ""
    progress = record.progress
    times = {"token": progress.token_at, "tool": progress.tool_at, "heartbeat": progress.heartbeat_at}
    return ", ".join(f"{kind} {duration(max(0, record.read_at - at))} ago" for kind, at in times.items() if at)


def stop_text(stop: Stop) -> str:
    """`user: no longer needed`, and whether the end of its processes was seen."""
    seen = "" if stop.confirmed else " (not confirmed: its owner was lost)"
    return f"{stop.kind}: {brief(stop.reason)}{seen}"


@click.command()
@options.task_id
@options.text_or_json
@options.redis_url
def transcript(task_id: TaskId, output_format: OutputFormat, redis_url: str | None) -> int:
    """Print the history of a job or a task; notifications are shown decoded."""
    settings = options.settings_for({"redis.url": redis_url})
    return options.run_async(_transcript(settings, task_id, output_format))


async def _transcript(settings: Settings, task_id: TaskId, output: OutputFormat) -> int:
    async with options.connect(settings) as client:
        lines = await client.transcript(task_id)
        printed = "" if lines else await client.output(task_id)
    if output is OutputFormat.JSON:
        _print_json([json.loads(line.model_dump_json()) for line in lines])
        return 0
    streams = options.streams()
    for line in lines:
        for piece in transcript_text(line):
            streams.answer(piece)
    if printed:
        streams.answer(harmless(printed))
    return 0


def transcript_text(line: Line) -> Iterable[str]:
    """A heading and the readable form of each block."""
    yield f"--- {line.seq}  run {line.run} turn {line.turn}  {line.origin}"
    for block in line.content:
        if block.get("type") == "tool_use":
            yield f"> {describe_call(block)}"
        elif text := block_text(block):
            is_told = line.role == "user" and block.get("type") == "text"
            yield harmless(readable(text, line.origin) if is_told else text)
        else:
            yield f"[{block.get('type')}]"


def _print_json(value: JsonValue) -> None:
    options.streams().answer(json.dumps(value, ensure_ascii=False))
