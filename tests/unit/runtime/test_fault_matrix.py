"""Every way in which a model call fails, over a real socket, at the first call and at one after tools: the job ends
well or with its reason, the transcript is valid, no tool ran twice, no tool_use is orphaned (SPEC 5, Recovery)."""

from dataclasses import dataclass

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import State, Subtype
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.testing.raw_model import (
    Raw,
    block,
    ending,
    message_start,
    raw_model,
    refusal,
    says,
    sse,
    text,
    tool,
)
from celeriac.common.testing.runs import Probe, Stage


@dataclass(frozen=True)
class Fault:
    """An answer, and what becomes of the run that meets it once."""

    answer: Raw
    fails: str = ""
    """The first word of the reason; empty: the run goes on and succeeds."""


HALF = [message_start(), *text(0, "half")]
ERROR: tuple[str, JsonObject] = ("error", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
OPEN_CALL = block(
    1,
    {"type": "tool_use", "id": "toolu_cut", "name": "Bash", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"text": "cu'},
)[:-1]
STARTED = [*HALF, *tool(1, "toolu_2", "Bash", text="once")]
"""An answer whose state-changing call has begun."""
FAULTS = {
    "400": Fault(refusal(400, "invalid_request_error", "messages: wrong"), "bad_request"),
    "400 too long": Fault(
        refusal(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), "prompt_too_long"
    ),
    "400 input and max_tokens": Fault(
        refusal(
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 194000 + 8000 > 200000, decrease them",
        )
    ),
    "401": Fault(refusal(401, "authentication_error"), "bad_credentials"),
    "403": Fault(refusal(403, "permission_error"), "bad_credentials"),
    "404": Fault(refusal(404, "not_found_error", "model: nobody"), "not_found"),
    "413": Fault(refusal(413, "request_too_large"), "request_too_large"),
    "429": Fault(refusal(429, "rate_limit_error")),
    "500": Fault(refusal(500, "api_error")),
    "529": Fault(refusal(529, "overloaded_error")),
    "error event": Fault(Raw(sse(*HALF, ERROR))),
    "error event before anything": Fault(Raw(sse(ERROR))),
    "reset": Fault(Raw(sse(*HALF), end="reset")),
    "stall": Fault(Raw(sse(*HALF), end="stall")),
    "early end after message_start": Fault(Raw(sse(message_start()))),
    "early end inside text": Fault(Raw(sse(*HALF[:-1]))),
    "early end inside tool JSON": Fault(Raw(sse(*HALF, *OPEN_CALL))),
    "early end at message_delta": Fault(Raw(sse(*HALF, *ending()[:1]))),
    "early end after a call has started": Fault(Raw(sse(*STARTED))),
    "reset after a call has started": Fault(Raw(sse(*STARTED), end="reset")),
    "stall after a call has started": Fault(Raw(sse(*STARTED), end="stall")),
    "error event after a call has started": Fault(Raw(sse(*STARTED, ERROR))),
    "stall inside the JSON of the next call": Fault(
        Raw(sse(*STARTED, *[(name, {**data, "index": 2}) for name, data in OPEN_CALL]), end="stall")
    ),
    "cut by max_tokens": Fault(Raw(sse(*HALF, *ending("max_tokens")))),
    "cut inside a call": Fault(
        Raw(sse(*HALF, *OPEN_CALL, ("content_block_stop", {"index": 1}), *ending("max_tokens")))
    ),
    "refusal": Fault(Raw(sse(*HALF, *ending("refusal"))), "refusal"),
}
TOOLS = Raw(sse(message_start(), *text(0, "first"), *tool(1, "toolu_1", "Bash", text="before"), *ending("tool_use")))


@pytest.mark.parametrize("after_tools", [False, True], ids=["first call", "call after tools"])
@pytest.mark.parametrize("name", FAULTS)
async def test_the_run_survives_or_says_why_not(name: str, after_tools: bool, stage: Stage, bash: Probe) -> None:
    fault = FAULTS[name]
    async with raw_model(*([TOOLS] if after_tools else []), fault.answer, says("done")) as model:
        stage.client = client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=0.5)
        record, lines, _ = await stage.whole()
        await client.aclose()
    assert record.outcome is not None
    if fault.fails:
        assert (record.state, record.outcome.subtype) == (State.FAILED, Subtype.EXECUTION)
        assert record.outcome.reason.startswith(fault.fails), record.outcome.reason
    else:
        assert record.state is State.COMPLETED and record.outcome.text == "done", record.outcome
    assert sorted(bash.calls) == sorted(set(bash.calls)) and "cu" not in bash.calls
    assert bash.calls[:1] == (["before"] if after_tools else bash.calls[:1])
    is_valid(lines)


def is_valid(lines: tuple[Line, ...]) -> None:
    """The rules of a request that a transcript can break (MODEL_API)."""
    asked: list[str] = []
    for line in lines:
        assert line.content and all(part.get("type") != "text" or str(part["text"]).strip() for part in line.content)
        answered = [str(part["tool_use_id"]) for part in line.content if part.get("type") == "tool_result"]
        assert answered == asked, "each call is answered in the very next message, in order"
        asked = [str(part["id"]) for part in line.content if part.get("type") == "tool_use"]
    assert lines[0].role == "user" and not asked
