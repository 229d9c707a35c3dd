"""C82: a call that comes twice, after a retry, in one answer or in a later one, runs once and has one result; no id
stands twice in a transcript."""

import asyncio
from collections import Counter

import orjson
import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import Record, State
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.llm.wire import dumps
from celeriac.common.testing.raw_model import End, Raw, ending, message_start, raw_model, says, sse, text, tool
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, tool_use
from celeriac.common.testing.scripted import says as told
from celeriac.ops.standin.validator import validate

CALL = tool(0, "toolu_1", "Bash", text="a")
READ = tool(0, "toolu_1", "Read", text="a")


def whole(*blocks: list[tuple[str, JsonObject]]) -> Raw:
    return Raw(sse(message_start(), *(event for block in blocks for event in block), *ending("tool_use")))


async def played(stage: Stage, *answers: Raw) -> tuple[Record, tuple[Line, ...], list[JsonObject]]:
    async with raw_model(*answers, says("done")) as model:
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=0.5)
        async with asyncio.timeout(20):
            record, lines, _ = await stage.whole()
        await client.aclose()
    for request in model.requests:
        assert validate(dumps(request)).reason == ""
    return record, lines, model.requests


def ids_of(lines: tuple[Line, ...]) -> tuple[Counter[str], Counter[str]]:
    blocks = [block for line in lines for block in line.content]
    calls = Counter(str(block["id"]) for block in blocks if block["type"] == "tool_use")
    results = Counter(str(block["tool_use_id"]) for block in blocks if block["type"] == "tool_result")
    return calls, results


def each_once(lines: tuple[Line, ...], count: int) -> None:
    calls, results = ids_of(lines)
    assert calls == results and len(calls) == count and set(calls.values()) == {1}


@pytest.mark.parametrize("call", [CALL, READ], ids=["state-changing", "read-only"])
@pytest.mark.parametrize("end", ["cut", "whole", "reset", "stall"])
async def test_a_stream_that_breaks_after_the_call_and_brings_it_again(
    call: list[tuple[str, JsonObject]], end: End, stage: Stage, bash: Probe, read: Probe
) -> None:
    broken = Raw(sse(message_start(), *call), end=end)
    record, lines, _ = await played(stage, broken, whole(call))
    assert record.state is State.COMPLETED
    calls, results = ids_of(lines)
    assert calls == results and calls["toolu_1"] == 1
    assert bash.ended == bash.calls == (["a"] if call is CALL else [])
    assert set(read.calls) == (set() if call is CALL else {"a"})


@pytest.mark.parametrize("call", [CALL, READ], ids=["state-changing", "read-only"])
async def test_one_answer_with_the_same_call_twice(
    call: list[tuple[str, JsonObject]], stage: Stage, bash: Probe, read: Probe
) -> None:
    again = [(name, {**data, "index": 1}) for name, data in call]
    record, lines, _ = await played(stage, whole(call, again))
    assert record.state is State.COMPLETED
    each_once(lines, 1)
    assert bash.calls + read.calls == ["a"]


async def test_one_answer_with_one_id_for_two_calls(stage: Stage, bash: Probe) -> None:
    record, lines, _ = await played(stage, whole(CALL, tool(1, "toolu_1", "Bash", text="b")))
    assert record.state is State.COMPLETED
    each_once(lines, 2)
    assert bash.calls == ["a", "b"]


async def test_a_later_answer_with_the_id_of_another_call(stage: Stage, bash: Probe) -> None:
    calls = [whole(text(0, "next"), tool(1, "toolu_1", "Bash", text=str(n))) for n in range(3)]
    record, lines, _ = await played(stage, *calls)
    assert record.state is State.COMPLETED
    each_once(lines, 3)
    assert bash.calls == ["0", "1", "2"]


async def test_the_same_call_in_an_answer_after_a_whole_one_is_meant_and_runs(stage: Stage, bash: Probe) -> None:
    record, lines, _ = await played(stage, whole(CALL), whole(CALL))
    assert record.state is State.COMPLETED and bash.calls == ["a", "a"]
    each_once(lines, 2)


@pytest.mark.parametrize("odd", ["", "toolu 1", "toolu.1", "é"])
async def test_an_id_that_the_api_would_not_take_back(odd: str, stage: Stage, bash: Probe) -> None:
    record, lines, _ = await played(stage, whole(tool(0, odd, "Bash", text="a"), tool(1, odd, "Bash", text="b")))
    assert record.state is State.COMPLETED and bash.calls == ["a", "b"]
    each_once(lines, 2)


async def test_a_new_owner_knows_the_ids_of_the_former_one(stage: Stage, bash: Probe) -> None:
    record, _, _ = await stage.whole(Scripted([tool_use("t1", "Bash", text="a")]), told("first"))
    await stage.substrate.inboxes.send_message(record.task_id, "1", "more", op="send", sender=None)
    now = await stage.substrate.records.get(record.task_id)
    answers = [Scripted([tool_use("t1", "Bash", text="b")]), told("second")]
    await stage.play(now, await stage.claim(now), answers)
    assert bash.calls == ["a", "b"]
    each_once(await stage.substrate.transcripts.lines(record.task_id), 2)
    assert (await stage.substrate.records.get(record.task_id)).state is State.COMPLETED


async def test_the_history_is_sent_with_the_same_bytes_as_it_was_stored(stage: Stage) -> None:
    _, lines, requests = await played(stage, whole(CALL, tool(1, "toolu_1", "Bash", text="b")))
    stored = [orjson.dumps(list(line.content)) for line in lines[:3]]
    messages = requests[-1]["messages"]
    assert isinstance(messages, list)
    sent = [orjson.dumps(_unmarked(message)) for message in messages]
    assert sent == stored


def _unmarked(message: object) -> list[JsonObject]:
    assert isinstance(message, dict)
    return [{key: value for key, value in block.items() if key != "cache_control"} for block in message["content"]]
