"""How a claimed task goes on: history, draft and marks become the loop's start (PROTOCOL 4, repair). Pure, but for
one append."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft, Line, NewLine, Origin, text_block, tool_result_block
from celeriac.common.contract.task import Denial, Value
from celeriac.common.contract.tool_names import AGENT_TOOL
from celeriac.common.runtime.deps import Inbox, Tally, Writer
from celeriac.common.runtime.executor import DENIED
from celeriac.common.runtime.loop import Start
from celeriac.common.runtime.state import LoopState, ToolUseContext
from celeriac.common.runtime.turn import Resumed, api_messages, inbox_blocks
from celeriac.common.substrate.types import Mark, MarkState
from celeriac.common.tools.base import Restart
from celeriac.common.tools.toolbox import Toolbox

EFFECT_UNKNOWN = "started before a restart, effect unknown: look before you do it again"
RUN_ENDED = "the run ended before this call started"


@dataclass(frozen=True, slots=True)
class Past:
    """What a former owner left."""

    task_id: TaskId
    run: int
    lines: tuple[Line, ...]
    draft: Draft | None
    marks: Mapping[str, Mark]


async def first_line(writer: Writer, inbox: Inbox, *, run: int, prompt: str) -> NewLine:
    """Append the prompt, with what waits already, as the first user message (PROTOCOL 3, create)."""
    entries = await inbox.unread() if writer.unread else ()
    line = NewLine(
        run=run,
        turn=0,
        role="user",
        content=(text_block(prompt), *inbox_blocks(entries)),
        origin=Origin.PROMPT,
        inbox_ids=tuple(entry.id for entry in entries),
    )
    await writer.append([line], consume=[entry.id for entry in entries], progress=False)
    return line


def start_of(past: Past, context: ToolUseContext, restart_of: Callable[[str], Restart], *, waits: bool) -> Start:
    """Where the loop begins after a first line. `waits`: entries are unread, or a person was asked."""
    state = LoopState(
        messages=api_messages((), past.lines),
        tool_use_context=context,
        turn_count=sum(1 for line in past.lines if line.role == "assistant" and line.run == past.run),
    )
    resumed = _from_draft(past, restart_of) or _from_last_line(past, restart_of)
    if resumed is not None:
        return Start(state, resumed=resumed)
    return Start(state, waiting=waits or _answered(past.lines[-1]))


def _answered(line: Line) -> bool:
    """Whether the model has said what it had to say; an answer with a server's tool in it was paused, and goes on."""
    return line.role == "assistant" and all(block.get("type") != "server_tool_use" for block in line.content)


def tool_turns(lines: Sequence[Line], run: int) -> int:
    """Tool-use turns of this run so far."""
    answers = [line for line in lines if line.role == "assistant" and line.run == run]
    return sum(1 for line in answers if any(block.get("type") == "tool_use" for block in line.content))


def recount(tally: Tally, lines: Sequence[Line], run: int) -> None:
    """What the transcript tells of the run so far, for an owner that goes on with it."""
    tally.tool_turns = tool_turns(lines, run)
    tally.last_text = last_text(lines, run)
    metas = (meta for line in lines if line.run == run for meta in line.metas)
    tally.denials.extend(Denial.model_validate(meta.data) for meta in metas if meta.tool == DENIED)


def recall(lines: Sequence[Line], toolbox: Toolbox, memory: dict[str, Value]) -> None:
    """Give the tools back what they kept of earlier results, oldest first."""
    for meta in (meta for line in lines for meta in line.metas):
        if (tool := toolbox.find(meta.tool)) is not None:
            tool.recall(meta.data, memory)


def last_text(lines: Sequence[Line], run: int) -> str:
    """The text of the run's latest answer that has one: what a partial result shows."""
    for line in reversed(lines):
        texts = [str(block["text"]) for block in line.content if block.get("type") == "text"]
        if line.role == "assistant" and line.run == run and texts:
            return "\n\n".join(texts)
    return ""


def _from_draft(past: Past, restart_of: Callable[[str], Restart]) -> Resumed | None:
    draft = past.draft
    if draft is None:
        return None
    presets = _presets(past, draft.blocks, restart_of, this_run=draft.run == past.run)
    return Resumed(draft.blocks, presets, stored=False, run=draft.run, turn=draft.turn)


def _from_last_line(past: Past, restart_of: Callable[[str], Restart]) -> Resumed | None:
    last = past.lines[-1]
    if last.role != "assistant" or all(block.get("type") != "tool_use" for block in last.content):
        return None
    presets = _presets(past, last.content, restart_of, this_run=last.run == past.run)
    return Resumed(last.content, presets, stored=True, run=last.run, turn=last.turn)


def _presets(
    past: Past, blocks: Sequence[JsonObject], restart_of: Callable[[str], Restart], *, this_run: bool
) -> dict[str, JsonObject]:
    presets: dict[str, JsonObject] = {}
    for block in blocks:
        if (
            block.get("type") == "tool_use"
            and (result := _preset(past, block, restart_of, this_run=this_run)) is not None
        ):
            presets[str(block["id"])] = result
    return presets


def _preset(
    past: Past, block: JsonObject, restart_of: Callable[[str], Restart], *, this_run: bool
) -> JsonObject | None:
    """The result that is decided without running the call; None = it is run."""
    call_id = str(block["id"])
    mark = past.marks.get(call_id)
    if mark is not None and mark.state is MarkState.DONE:
        kept: JsonObject = orjson.loads(mark.result)
        return kept
    if not this_run:
        text = EFFECT_UNKNOWN if mark is not None else RUN_ENDED
        return tool_result_block(call_id, text + _created(past, block), is_error=True)
    if mark is None or restart_of(str(block["name"])) is Restart.RERUN:
        return None
    return tool_result_block(call_id, EFFECT_UNKNOWN, is_error=True)


def _created(past: Past, block: JsonObject) -> str:
    """Names the task that an AgentTool call of an ended run may have created."""
    raw = block.get("input")
    if block.get("name") != AGENT_TOOL or not isinstance(raw, dict):
        return ""
    kind = str(raw.get("kind", Kind.AGENT.value))
    if kind not in set(Kind):
        return ""
    return (
        f"; if task {ids.child(past.task_id, Kind(kind), str(block['id']))} was created, it was stopped with that run"
    )
