"""C107: an answer counts only when message_stop has come with a stop_reason; what breaks before is asked again, and
what is merely unknown is passed over."""

from collections.abc import AsyncIterator

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import State
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.settings import RetrySettings
from celeriac.common.testing.raw_model import (
    End,
    Raw,
    block,
    ending,
    message_start,
    raw_model,
    says,
    sse,
    text,
    tool,
)
from celeriac.common.testing.runs import Probe, Stage

HALF = [message_start(), *text(0, "half")]
OPEN_HALF = HALF[:-1]
ERROR: tuple[str, JsonObject] = ("error", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
LATE = [*HALF, *ending()[:1]]
"""Whole but for its message_stop."""
BROKEN = {
    "socket closed inside a block": Raw(sse(*OPEN_HALF), end="cut"),
    "socket closed between blocks": Raw(sse(*HALF), end="cut"),
    "socket closed inside an event": Raw(sse(*OPEN_HALF)[:-9], end="cut"),
    "closed before the first event": Raw(b"", end="cut"),
    "orderly end inside a block": Raw(sse(*OPEN_HALF)),
    "orderly end without message_delta": Raw(sse(*HALF)),
    "orderly end without message_stop": Raw(sse(*LATE)),
    "orderly end before the first event": Raw(b""),
    "orderly end inside the last event": Raw(sse(*HALF, *ending())[:-2]),
    "only pings": Raw(sse(("ping", {}), ("ping", {}))),
    "reset": Raw(sse(*OPEN_HALF), end="reset"),
    "reset after message_delta": Raw(sse(*LATE), end="reset"),
    "stall": Raw(sse(*OPEN_HALF), end="stall"),
    "stall before the first event": Raw(b"", end="stall"),
    "error event": Raw(sse(*OPEN_HALF, ERROR)),
    "error event after message_delta": Raw(sse(*LATE, ERROR)),
    "stop_reason null": Raw(sse(*HALF, *ending(None))),
    "no stop_reason": Raw(sse(*HALF, ("message_delta", {"delta": {}, "usage": {}}), ("message_stop", {}))),
    "no message_delta": Raw(sse(*HALF, ("message_stop", {}))),
    "a block without an end": Raw(sse(*OPEN_HALF, *ending())),
    "a second message_start": Raw(sse(*HALF, *HALF, *ending())),
    "a call whose input is no JSON": Raw(
        sse(
            message_start(),
            *block(
                0,
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"text": "a'},
            ),
            *ending("tool_use"),
        )
    ),
    "a tool_use stop without a call": Raw(sse(*HALF, *ending("tool_use"))),
    "no JSON": Raw(sse(*OPEN_HALF) + b"event: content_block_delta\ndata: {\n\n" + sse(*ending())),
    "a web page": Raw(b"<html><body>Bad gateway</body></html>", content_type="text/html"),
}
STRANGE: dict[str, list[tuple[str, JsonObject]]] = {
    "an unknown event": [("new_kind", {"anything": [1]})],
    "a ping": [("ping", {})],
    "an unknown event with an index": [("new_kind", {"index": 0, "delta": {}})],
    "an unknown delta": [("content_block_delta", {"index": 0, "delta": {"type": "new_delta", "x": 1}})],
    "an unknown block": block(7, {"type": "new_block", "x": {"y": 1}}, {"type": "new_delta"}),
}


@pytest.fixture
async def asked(stage: Stage) -> AsyncIterator["Asked"]:
    made = Asked(stage)
    yield made
    if made.client is not None:
        await made.client.aclose()


class Asked:
    """The loop on the real client, asked over a real socket."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.client: AnthropicClient | None = None

    def at(self, url: str) -> Stage:
        self.client = AnthropicClient(base_url=url, api_key="k", read_timeout=0.5)
        self.stage.client = self.client
        return self.stage


@pytest.mark.parametrize("name", BROKEN)
async def test_a_cut_answer_is_asked_again_and_nothing_of_it_stays(name: str, asked: Asked) -> None:
    async with raw_model(BROKEN[name], says("whole")) as model:
        record, lines, _ = await asked.at(model.url).whole()
    assert record.outcome is not None and record.outcome.text == "whole", record.outcome
    assert len(model.requests) == 2 and model.requests[0] == model.requests[1]
    assert [line.role for line in lines] == ["user", "assistant"]
    assert "half" not in str(lines)


@pytest.mark.parametrize("name", ["socket closed inside a block", "orderly end without message_stop", "stall"])
async def test_one_that_is_always_cut_fails_and_is_never_taken_as_finished(name: str, asked: Asked) -> None:
    async with raw_model(BROKEN[name]) as model:
        record, lines, _ = await asked.at(model.url).whole()
    assert record.state is State.FAILED and record.outcome is not None
    assert "broken_stream" in record.outcome.reason
    assert len(model.requests) == RetrySettings().attempts and [line.role for line in lines] == ["user"]


@pytest.mark.parametrize(
    ("name", "position"),
    [(name, position) for name in STRANGE for position in ((2, 3) if "delta" in name else (1, 2, 3, 4, 5))],
)
async def test_what_is_unknown_is_passed_over_wherever_it_stands(name: str, position: int, asked: Asked) -> None:
    events = [*HALF, *ending()]
    async with raw_model(Raw(sse(*events[:position], *STRANGE[name], *events[position:]))) as model:
        record, lines, _ = await asked.at(model.url).whole()
    assert record.state is State.COMPLETED and record.outcome is not None and record.outcome.text == "half"
    assert len(model.requests) == 1
    assert {"type": "text", "text": "half"} in lines[1].content


@pytest.mark.parametrize("end", ["cut", "whole", "reset", "stall"])
async def test_a_call_that_started_before_the_break_is_kept_and_not_repeated(
    end: End, asked: Asked, bash: Probe
) -> None:
    cut = Raw(
        sse(message_start(), *text(0, "I begin"), *tool(1, "toolu_1", "Bash", text="a"), *text(2, "half")[:2]), end=end
    )
    async with raw_model(cut, says("done")) as model:
        record, lines, _ = await asked.at(model.url).whole()
    assert record.state is State.COMPLETED and bash.calls == ["a"]
    assert [block["type"] for block in lines[1].content] == ["text", "tool_use"]
    assert [block["type"] for block in lines[2].content] == ["tool_result"]
    assert "half" not in str(lines)
