"""C22: a job that did not succeed says so to programs: exit code, is_error and subtype, in one JSON document."""

import asyncio
import json
from pathlib import Path

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import State, Subtype
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.settings import Settings
from celeriac.common.testing.command import CommandLine, Said
from celeriac.common.testing.raw_model import Raw, ending, message_start, raw_model, refusal, says, sse, text, tool
from celeriac.common.testing.runs import Stage
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobResult

REFUSALS = {
    "400": refusal(400, "invalid_request_error", "messages: wrong"),
    "400 too long": refusal(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
    "401": refusal(401, "authentication_error", "invalid x-api-key"),
    "402": refusal(402, "billing_error", "no credit"),
    "403": refusal(403, "permission_error"),
    "404": refusal(404, "not_found_error", "model: nobody"),
    "413": refusal(413, "request_too_large"),
    "422": refusal(422, "invalid_request_error"),
    "429": refusal(429, "rate_limit_error"),
    "500": refusal(500, "api_error"),
    "503 as a page": Raw(b"<html>down</html>", status=503, content_type="text/html"),
    "529": refusal(529, "overloaded_error"),
    "400 without a body": Raw(b"", status=400),
    "200 as a page": Raw(b"<html>log in</html>", content_type="text/html"),
    "200 as JSON": Raw(b'{"type":"message","content":[]}', content_type="application/json"),
    "200 and nothing": Raw(b""),
    "refusal": Raw(sse(message_start(), *text(0, "no"), *ending("refusal"))),
    "cut by max_tokens": Raw(sse(message_start(), *text(0, "half"), *ending("max_tokens"))),
}
CALL = Raw(sse(message_start(), *text(0, "I look"), *tool(1, "toolu_1", "Bash", text="x"), *ending("tool_use")))


@pytest.mark.parametrize("later", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("name", REFUSALS)
async def test_no_failure_of_the_model_is_a_success(name: str, later: bool, stage: Stage) -> None:
    """The result of the job, as every output form of the command line shows it."""
    async with raw_model(*([CALL] if later else []), REFUSALS[name]) as model:
        client = stage.client = AnthropicClient(base_url=model.url, api_key="k", read_timeout=5)
        async with asyncio.timeout(60):
            record, _, _ = await stage.whole()
        await client.aclose()
    assert record.state is State.FAILED and record.outcome is not None
    assert record.outcome.subtype is Subtype.EXECUTION and record.outcome.reason
    result = await Client(stage.substrate, Settings(home=Path("/nowhere"))).wait(record.task_id)
    document = result.document()
    assert result.exit_code == 1
    assert (document["is_error"], document["subtype"]) == (True, "error_during_execution")
    assert document["result"] is None and document["partial_result"] == record.outcome.text


def run(home: Path, url: str, *arguments: str, stdin: str = "") -> Said:
    environ = {
        "HOME": str(home),
        "CELERIAC_HOME": str(home / "home"),
        "ANTHROPIC_BASE_URL": url,
        "CELERIAC_RETRY_ATTEMPTS": "2",
    }
    return CommandLine(home, environ).run("run", *arguments, stdin=stdin, ANTHROPIC_API_KEY="test-key")


def is_failed(said: Said, *words: str) -> JsonObject:
    assert said.code == 1, said
    document: JsonObject = json.loads(said.out)
    assert document["is_error"] is True and document["subtype"] == "error_during_execution"
    assert document["type"] == "result" and document["session_id"]
    assert all(word in str(document["reason"]) for word in words)
    assert "test-key" not in said.out + said.err
    return document


@pytest.mark.parametrize(
    "left",
    [
        {"state": State.COMPLETED, "subtype": Subtype.SUCCESS, "replay_unused": ("line 3 was not asked",)},
        {"state": State.FAILED, "subtype": Subtype.MAX_TURNS, "limited": True},
        {"state": State.STOPPED, "subtype": Subtype.EXECUTION},
        {"state": State.RUNNING, "subtype": Subtype.SUCCESS},
    ],
)
def test_a_document_never_says_success_beside_an_error(left: dict[str, object]) -> None:
    session = ids.new_session()
    result = JobResult.model_validate({"task_id": session, "session_id": session, "result": "so far", **left})
    document = result.document()
    assert result.exit_code != 0 and document["is_error"] is True
    assert str(document["subtype"]).startswith("error_")
    assert (document["result"], document["partial_result"]) == (None, "so far")


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "word"), [("400", "messages: wrong"), ("401", "key"), ("529", "overloaded")])
async def test_an_api_error_in_json_form(name: str, word: str, tmp_path: Path) -> None:
    async with raw_model(REFUSALS[name]) as model:
        said = await asyncio.to_thread(run, tmp_path, model.url, "What?", "--output-format", "json")
    is_failed(said, word)
    assert said.out.count("\n") == 1


@pytest.mark.cluster
async def test_an_api_error_in_the_other_forms(tmp_path: Path) -> None:
    async with raw_model(REFUSALS["400"]) as model:
        lines = await asyncio.to_thread(run, tmp_path, model.url, "What?", "--output-format", "stream-json")
        plain = await asyncio.to_thread(run, tmp_path, model.url, stdin="What?")
    events = [json.loads(line) for line in lines.out.splitlines()]
    assert [event["type"] for event in events].count("result") == 1
    is_failed(Said(lines.code, json.dumps(events[-1]), lines.err), "messages: wrong")
    assert (plain.code, plain.out) == (1, "")
    assert "messages: wrong" in plain.err


@pytest.mark.cluster
async def test_no_server_at_all(tmp_path: Path) -> None:
    async with raw_model(says("unused")) as model:
        url = model.url
    is_failed(await asyncio.to_thread(run, tmp_path, url, "What?", "--output-format", "json"), "unreachable")
