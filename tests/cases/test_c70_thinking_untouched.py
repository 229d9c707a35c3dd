"""C70: thinking goes back byte for byte and in its place, through clean-ups, storage and a change of owner."""

import asyncio

import orjson
import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.llm.client import Request
from celeriac.common.llm.request_body import encode
from celeriac.common.llm.wire import dumps
from celeriac.common.testing.raw_model import Raw, block, ending, message_start, raw_model, says, sse, text, tool
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import says as told

PLAIN: JsonObject = {"type": "thinking", "thinking": "  plan \n", "signature": "S"}
THINKING: list[JsonObject] = [
    PLAIN,
    {"type": "thinking", "thinking": "", "signature": "only signed=="},
    {"type": "thinking", "thinking": "\n\n", "signature": "blank"},
    {"type": "thinking", "thinking": "zero\u200bwidth \u202e \ufeff \r\n\t nul\0 \U0001f600", "signature": "a+/b=="},
    {"type": "redacted_thinking", "data": "EmwK  \n"},
    {"type": "thinking", "thinking": "newer", "signature": "S", "of_a_newer_api": {"b": 1.0, "a": [10**19, None]}},
]
blocks = pytest.mark.parametrize("thinking", THINKING, ids=lambda one: ascii(one)[:40])


def streamed(index: int, thinking: JsonObject) -> list[tuple[str, JsonObject]]:
    """As the API streams it: the words and the signature in pieces."""
    if thinking["type"] == "redacted_thinking":
        return block(index, thinking)
    words, signature = str(thinking["thinking"]), str(thinking["signature"])
    deltas: list[JsonObject] = [{"type": "thinking_delta", "thinking": char} for char in words]
    deltas += [{"type": "signature_delta", "signature": part} for part in (signature[:1], signature[1:])]
    return block(index, {**thinking, "thinking": "", "signature": ""}, *deltas)


def answer(*thinking: JsonObject) -> Raw:
    events = [event for index, one in enumerate(thinking) for event in streamed(index, one)]
    call = tool(len(thinking) + 1, "toolu_1", "Bash", text="a")
    return Raw(sse(message_start(), *events, *text(len(thinking), "x \n"), *call, *ending("tool_use")))


def sent(request: JsonObject) -> list[JsonObject]:
    messages = request["messages"]
    assert isinstance(messages, list) and isinstance(messages[1], dict)
    content = messages[1]["content"]
    assert isinstance(content, list)
    return [part for part in content if isinstance(part, dict)]


def prefix(request: Request) -> bytes:
    """The bytes of the first two messages as they are sent."""
    wires = [message.wire for message in request.messages[:2]]
    assert all(wire in encode(request) for wire in wires)
    return b",".join(wires)


@blocks
async def test_on_the_next_call_of_the_tool_loop_it_is_the_same_and_first(thinking: JsonObject, stage: Stage) -> None:
    async with raw_model(answer(thinking), says("done")) as model:
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=5)
        await stage.whole()
        await client.aclose()
    back = sent(model.requests[1])
    assert [part["type"] for part in back] == [thinking["type"], "text", "tool_use"]
    assert dumps(back[0]) == dumps(thinking)
    assert back[1]["text"] == "x \n"


async def test_several_and_interleaved_ones_keep_their_order(stage: Stage) -> None:
    async with raw_model(answer(*THINKING), says("done")) as model:
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=5)
        await stage.whole()
        await client.aclose()
    assert [dumps(part) for part in sent(model.requests[1])[: len(THINKING)]] == [dumps(one) for one in THINKING]


@blocks
async def test_a_new_owner_sends_the_same_bytes(thinking: JsonObject, stage: Stage) -> None:
    async with raw_model(answer(thinking), says("first")) as model:
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=5)
        record, lines, _ = await stage.whole()
        await client.aclose()
    stage.client = None
    await stage.substrate.inboxes.send_message(record.task_id, "1", "more", op="send", sender=None)
    now = await stage.substrate.records.get(record.task_id)
    later = await stage.play(now, await stage.claim(now), [told("second")])
    assert dumps(lines[1].content[0]) == dumps(thinking)
    assert dumps(thinking) in prefix(later.requests[0])
    messages = model.requests[1]["messages"]
    assert isinstance(messages, list)
    assert later.requests[0].messages[1].wire == orjson.dumps(messages[1])


@blocks
async def test_so_does_one_that_finds_a_draft(thinking: JsonObject, stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    record = await stage.create()
    lease = await stage.claim(record)
    async with raw_model(answer(thinking)) as model, asyncio.timeout(20):
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=5)
        playing = asyncio.ensure_future(stage.play(record, lease, []))
        await bash.begun.wait()
        lease.node.abort(AbortReason.SHUTDOWN)
        await playing
        await client.aclose()
    bash.gate, stage.client = None, None
    now = await stage.substrate.records.get(record.task_id)
    later = await stage.play(now, await stage.claim(now), [told("done")])
    assert [part["type"] for part in later.requests[0].messages[1].content] == [thinking["type"], "text", "tool_use"]
    assert dumps(thinking) in prefix(later.requests[0])


@blocks
async def test_a_broken_stream_whose_call_has_started_keeps_it(thinking: JsonObject, stage: Stage) -> None:
    whole = answer(thinking).body
    cut = Raw(whole[: whole.index(b"event: message_delta")], end="cut")
    async with raw_model(cut, says("done")) as model:
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=5)
        await stage.whole()
        await client.aclose()
    assert dumps(sent(model.requests[1])[0]) == dumps(thinking)
