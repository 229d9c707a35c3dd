"""C56: a text block without a visible character never stands in a request, whoever wrote it; what stands beside it
stays."""

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line, NewLine, Origin, text_block, tool_result_block
from celeriac.common.contract.task import State
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.llm.wire import dumps
from celeriac.common.runtime.turn import EMPTY_MESSAGE_TEXT
from celeriac.common.testing.raw_model import Raw, block, ending, message_start, raw_model, says, sse, text, tool
from celeriac.common.testing.runs import Probe, Stage, Words
from celeriac.common.testing.scripted import says as told
from celeriac.common.tools.base import ToolContext, ToolResult
from celeriac.ops.standin.validator import validate

BLANKS = ["\n\n", "", " ", "\t \r\n", "\u00a0", "\u3000\u2003", "\u2028\u2029", "\u0085", "\x1c\x1f", "\v\f"]
blanks = pytest.mark.parametrize("blank", BLANKS, ids=ascii)
CALL = tool(1, "toolu_1", "Bash", text="a")


async def played(stage: Stage, *answers: Raw) -> tuple[State, tuple[Line, ...], list[JsonObject]]:
    async with raw_model(*answers) as model:
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=5)
        record, lines, _ = await stage.whole()
        await client.aclose()
    for request in model.requests:
        assert validate(dumps(request)).reason == ""
    return record.state, lines, model.requests


@blanks
async def test_beside_a_call_it_is_dropped_and_the_call_is_kept(blank: str, stage: Stage, bash: Probe) -> None:
    answer = Raw(sse(message_start(), *text(0, blank), *CALL, *text(2, blank), *ending("tool_use")))
    state, lines, requests = await played(stage, answer, says("done"))
    assert state is State.COMPLETED and bash.calls == ["a"]
    assert [part["type"] for part in lines[1].content] == ["tool_use"]
    assert len(requests) == 2


@blanks
async def test_blanks_that_come_in_pieces_or_with_the_start_are_blanks(blank: str, stage: Stage) -> None:
    start: JsonObject = {"type": "text", "text": blank}
    pieces: list[JsonObject] = [{"type": "text_delta", "text": char} for char in blank]
    answer = Raw(sse(message_start(), *block(0, start, *pieces), *CALL, *ending("tool_use")))
    _, lines, _ = await played(stage, answer, says("done"))
    assert [part["type"] for part in lines[1].content] == ["tool_use"]


@blanks
async def test_an_answer_of_blanks_alone_is_no_message_and_the_next_call_is_legal(blank: str, stage: Stage) -> None:
    empty = Raw(sse(message_start(), *text(0, blank), *text(1, blank), *ending()))
    state, lines, _ = await played(stage, empty)
    assert state is State.COMPLETED and [line.role for line in lines] == ["user"]
    (task_id,) = [await stage.substrate.sessions.page(0, 1)][0]
    await stage.substrate.inboxes.send_message(task_id, "1", "and now?", op="send", sender=None)
    now = await stage.substrate.records.get(task_id)
    stage.client = None
    model = await stage.play(now, await stage.claim(now), [told("done")])
    assert [(message.role, len(message.content)) for message in model.requests[0].messages] == [("user", 2)]


@blanks
async def test_thinking_before_blanks_alone_does_not_end_a_message(blank: str, stage: Stage) -> None:
    thinking = block(0, {"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "S"})
    state, lines, _ = await played(stage, Raw(sse(message_start(), *thinking, *text(1, blank), *ending())))
    assert state is State.COMPLETED and [line.role for line in lines] == ["user"]


class Blank(Probe):
    """A tool whose output is blank."""

    def __init__(self, text: str, *, error: bool) -> None:
        super().__init__("Bash", changes=True)
        self._result = ToolResult(text, is_error=error)

    async def run(self, i: Words, ctx: ToolContext) -> ToolResult:
        return self._result


@blanks
@pytest.mark.parametrize("error", [False, True])
async def test_a_result_of_blanks_says_so(blank: str, error: bool, stage: Stage) -> None:
    stage.tools = [Blank(blank, error=error)]
    answer = Raw(sse(message_start(), *text(0, "I look"), *CALL, *ending("tool_use")))
    state, lines, _ = await played(stage, answer, says("done"))
    assert state is State.COMPLETED
    assert lines[2].content[0]["content"] == "(no output)"


@blanks
async def test_a_message_of_blanks_is_consumed_as_words(blank: str, stage: Stage) -> None:
    record = await stage.create()
    await stage.substrate.inboxes.send_message(record.task_id, "1", blank, op="send", sender=None)
    record = await stage.substrate.records.get(record.task_id)
    model = await stage.play(record, await stage.claim(record), [told("done")])
    (message,) = model.requests[0].messages
    assert [part["text"] for part in message.content] == ["do it", EMPTY_MESSAGE_TEXT]
    assert (await stage.substrate.records.get(record.task_id)).unread == 0


@blanks
async def test_one_that_is_stored_already_is_not_sent(blank: str, stage: Stage) -> None:
    record = await stage.create()
    lease = await stage.claim(record)
    lines = [
        ("user", [text_block("do it"), text_block(blank)], Origin.PROMPT),
        ("assistant", [text_block(blank), {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}], Origin.MODEL),
        ("user", [tool_result_block("t1", "did it"), text_block(blank)], Origin.TOOLS),
        ("assistant", [text_block(blank)], Origin.MODEL),
        ("user", [text_block(blank), text_block("go on")], Origin.MESSAGE),
    ]
    await lease.append(
        [
            NewLine.model_validate({"run": 1, "turn": 1, "role": role, "content": content, "origin": origin})
            for role, content, origin in lines
        ]
    )
    await lease.release()
    record = await stage.substrate.records.get(record.task_id)
    model = await stage.play(record, await stage.claim(record), [told("done")])
    messages: list[JsonObject] = [
        {"role": message.role, "content": list(message.content)} for message in model.requests[0].messages
    ]
    assert [[part["type"] for part in message.content] for message in model.requests[0].messages] == [
        ["text"],
        ["tool_use"],
        ["tool_result", "text"],
    ]
    tools: list[JsonObject] = [{"name": "Bash", "input_schema": {"type": "object"}}]
    assert validate(dumps({"model": "m", "max_tokens": 1, "tools": [*tools], "messages": [*messages]})).reason == ""
