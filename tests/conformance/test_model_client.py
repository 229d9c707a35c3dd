"""What every ModelClient does: the same script through a replay and through the real client on the stand-in."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing

import pytest

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Usage
from celeriac.common.lifetime.cancel import AbortNode, AbortReason
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.llm.client import (
    ApiMessage,
    BadCredentials,
    BadRequest,
    BlockDone,
    BrokenStream,
    CallKey,
    Finished,
    ModelClient,
    ModelEvent,
    ModelFailure,
    Overloaded,
    RateLimited,
    Request,
    ServerFailed,
    Started,
    TextDelta,
    TooLarge,
    TooLong,
)
from celeriac.common.llm.replay import MemoryLedger, ReplayModel, parse_script
from celeriac.ops.standin.server import Standin

SESSION = TaskId("s-0123456789abc")
USAGE: JsonObject = {
    "input_tokens": 11,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 7,
    "output_tokens": 23,
}
CONTENT: list[JsonObject] = [
    {"type": "thinking", "thinking": "I should look at the files first"},
    {"type": "text", "text": "I look at the files, grüße 😀"},
    {"type": "tool_use", "name": "Bash", "input": {"command": "ls -la", "n": 1}},
    {"type": "tool_use", "name": "Bash", "input": {}},
]
TOOLS = b'[{"name":"Bash","input_schema":{"type":"object"}}]'
Build = Callable[[JsonObject], "ModelClient"]


def entry(**more: object) -> JsonObject:
    reply: JsonObject = {"content": [*CONTENT], "usage": USAGE}
    return {"path": "s", "run": 1, "turn": 1, "reply": reply, **more}  # type: ignore[dict-item]  # any JSON


def request(prompt: str = "go", *, run: int = 1) -> Request:
    messages = (ApiMessage.of("user", ({"type": "text", "text": prompt},)),)
    return Request(CallKey(SESSION, "s", run, 1), "m", 1000, ({"type": "text", "text": "sys"},), TOOLS, messages)


class Models:
    """Builds the implementation under test for a script."""

    def __init__(self, kind: str, stack: AsyncExitStack) -> None:
        self.kind = kind
        self.stack = stack
        self.standin: Standin | None = None

    async def of(self, *entries: JsonObject) -> ModelClient:
        text = "\n".join(json.dumps(one) for one in ({"v": 1}, *entries))
        if self.kind == "replay":
            return ReplayModel(parse_script(text, "f"), MemoryLedger())
        return await self.client(text)

    async def client(self, text: str = '{"v":1}', *, read_timeout: float = 0.3, key: str = "k") -> AnthropicClient:
        self.standin = Standin(parse_script(text, "f"))
        url = await self.standin.start()
        self.stack.push_async_callback(self.standin.aclose)
        client = AnthropicClient(base_url=url, api_key=key, read_timeout=read_timeout, standin=True)
        self.stack.push_async_callback(client.aclose)
        return client


@pytest.fixture(params=["replay", "api"])
async def models(request: pytest.FixtureRequest) -> AsyncIterator[Models]:
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        yield Models(request.param, stack)


@pytest.fixture
async def api() -> AsyncIterator[Models]:
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        yield Models("api", stack)


async def collect(model: ModelClient, asked: Request, cancel: AbortNode | None = None) -> list[ModelEvent]:
    return [event async for event in model.stream(asked, cancel or AbortNode())]


async def broken(model: ModelClient, asked: Request) -> tuple[list[ModelEvent], ModelFailure]:
    """What came before the failure, and the failure."""
    seen: list[ModelEvent] = []
    with pytest.raises(ModelFailure) as caught:
        async for event in model.stream(asked, AbortNode()):
            seen.append(event)  # noqa: PERF401 - what came before the exception is kept
    return seen, caught.value


async def test_an_answer_gives_its_blocks_in_order_and_the_usage_of_the_call(models: Models) -> None:
    events = await collect(await models.of(entry()), request())
    done = [event for event in events if isinstance(event, BlockDone)]
    usage = Usage(input_tokens=11, cache_creation_input_tokens=5, cache_read_input_tokens=7, output_tokens=23)
    assert events[0] == Started("m", usage.model_copy(update={"output_tokens": 1}))
    assert events[-1] == Finished("tool_use", usage)
    assert [event.index for event in done] == [0, 1, 2, 3]
    assert [{key: event.block[key] for key in given} for event, given in zip(done, CONTENT, strict=True)] == CONTENT
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == CONTENT[1]["text"]


async def test_both_implementations_give_the_same_events_of_the_same_script(api: Models) -> None:
    replayed = await Models("replay", api.stack).of(entry())
    assert await collect(await api.of(entry()), request()) == await collect(replayed, request())


@pytest.mark.parametrize("kind", ["reset", "error", "clean_end", "stall"])
@pytest.mark.parametrize("after", ["message_start", "content_block_delta:1", "content_block_stop:2", "message_delta"])
async def test_a_stream_that_breaks_is_typed_and_tells_after_what(models: Models, kind: str, after: str) -> None:
    model = await models.of(entry(fault={"kind": kind, "after": after}))
    seen, failure = await broken(model, request())
    assert isinstance(failure, BrokenStream)
    assert failure.after == after
    blocks = [event.index for event in seen if isinstance(event, BlockDone)]
    assert blocks == {"message_start": [], "content_block_delta:1": [0], "content_block_stop:2": [0, 1, 2]}.get(
        after, [0, 1, 2, 3]
    )


async def test_the_next_attempt_after_a_break_has_new_ids_and_each_block_once(models: Models) -> None:
    model = await models.of(entry(fault={"kind": "reset", "after": "content_block_stop:2"}), entry())
    seen, _ = await broken(model, request())
    events = [*seen, *await collect(model, request())]
    ids = [event.block["id"] for event in events if isinstance(event, BlockDone) and event.block["type"] == "tool_use"]
    assert len(ids) == len(set(ids)) == 3


async def test_an_answer_without_stop_reason_is_broken(models: Models) -> None:
    model = await models.of(entry(reply={"content": CONTENT[1:2], "stop_reason": None}))
    assert isinstance((await broken(model, request()))[1], BrokenStream)


@pytest.mark.parametrize(("kind", "expected"), [("429", RateLimited), ("529", Overloaded), ("500", ServerFailed)])
async def test_refusals_are_typed(models: Models, kind: str, expected: type[ModelFailure]) -> None:
    model = await models.of(entry(fault={"kind": kind, "retry_after": 1.5}))
    seen, failure = await broken(model, request())
    assert seen == []
    assert type(failure) is expected
    if isinstance(failure, RateLimited):
        assert failure.retry_after == 1.5


async def test_a_call_without_an_answer_fails(models: Models) -> None:
    _, failure = await broken(await models.of(entry()), request(run=2))
    assert "replay has no answer for s run 2 turn 1" in str(failure)


async def test_a_block_is_given_out_when_it_is_complete_and_not_at_the_end(models: Models) -> None:
    """Two gaps lie between the last block's end and message_stop: 2 x 0.6 s by construction."""
    model = await models.of(entry(reply={"content": CONTENT[3:]}, pace_ms=600))
    if models.standin is not None:
        model = AnthropicClient(base_url=models.standin.url, api_key="k", standin=True)
        models.stack.push_async_callback(model.aclose)
    at: dict[type, float] = {}
    async for event in model.stream(request(), AbortNode()):
        at[type(event)] = time.monotonic()
    assert at[Finished] - at[BlockDone] >= 1.0


async def test_an_abort_ends_the_wait_between_two_events_at_once(models: Models) -> None:
    model = await models.of(entry(pace_ms=60_000))
    cancel = AbortNode()
    seen: list[ModelEvent] = []
    async for event in model.stream(request(), cancel):
        seen.append(event)
        asyncio.get_running_loop().call_soon(cancel.abort, AbortReason.USER)
    assert [type(event) for event in seen] == [Started]


async def test_an_abort_between_two_events_ends_the_stream(models: Models) -> None:
    model = await models.of(entry())
    cancel = AbortNode()
    seen: list[ModelEvent] = []
    async for event in model.stream(request(), cancel):
        seen.append(event)
        cancel.abort(AbortReason.PARENT)
    assert [type(event) for event in seen] == [Started]


async def test_an_aborted_node_asks_nothing(models: Models) -> None:
    cancel = AbortNode()
    cancel.abort(AbortReason.SHUTDOWN)
    assert await collect(await models.of(entry()), request(), cancel) == []
    if models.standin is not None:
        assert not models.standin.journal.entries


async def ended(standin: Standin) -> JsonObject:
    return await standin.journal.wait_for(lambda one: one["event"] == "end")


async def test_a_consumer_that_stops_or_aborts_closes_the_connection(api: Models) -> None:
    client = await api.client("\n".join(['{"v":1}', json.dumps(entry(hold="message_start"))]), read_timeout=60)
    assert api.standin is not None
    async with aclosing(client.stream(request(), AbortNode())) as stream:
        await anext(stream)
    assert (await ended(api.standin))["client_left"]
    api.standin.journal.entries.clear()
    cancel = AbortNode()
    async for _ in client.stream(request(), cancel):
        asyncio.get_running_loop().call_soon(cancel.abort, AbortReason.USER)
    assert (await ended(api.standin))["client_left"]


async def test_the_call_is_told_to_a_stand_in_and_to_nobody_else(api: Models) -> None:
    client = await api.client("\n".join(['{"v":1}', json.dumps(entry())]))
    await collect(client, request())
    assert api.standin is not None
    told = api.standin.journal.entries[0]
    assert (told["session"], told["path"], told["run"], told["turn"]) == (SESSION, "s", 1, 1)
    plain = AnthropicClient(base_url=api.standin.url, api_key="k")
    api.stack.push_async_callback(plain.aclose)
    await collect(plain, request())
    untold = [one for one in api.standin.journal.entries if one["event"] == "request"][1]
    assert (untold["session"], untold["path"]) == ("", "")


async def test_a_prompt_over_the_window_tells_both_numbers(api: Models) -> None:
    _, failure = await broken(await api.client(), request("word " * 200_000))
    assert isinstance(failure, TooLong)
    assert (failure.limit, failure.tokens > failure.limit) == (200_000, True)


async def test_a_request_with_too_many_bytes_is_typed(api: Models) -> None:
    _, failure = await broken(await api.client(read_timeout=20), request("x" * (33 * 1024 * 1024)))
    assert isinstance(failure, TooLarge)


async def test_a_request_that_is_refused_as_it_is_is_typed(api: Models) -> None:
    _, failure = await broken(await api.client(), request(" "))
    assert isinstance(failure, BadRequest)
    assert "non-whitespace" in str(failure)


async def test_a_missing_key_is_told_without_asking(api: Models) -> None:
    client = await api.client(key="")
    assert isinstance((await broken(client, request()))[1], BadCredentials)
    assert api.standin is not None
    assert not api.standin.journal.entries


async def test_no_server_is_a_server_failure(api: Models) -> None:
    client = await api.client()
    assert api.standin is not None
    await api.standin.aclose()
    assert isinstance((await broken(client, request()))[1], ServerFailed)
