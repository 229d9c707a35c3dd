"""The stand-in as a server: it refuses, counts, logs, holds and breaks as its script says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import orjson
import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.llm.replay import parse_script
from celeriac.ops.standin.exchange import BODY_LIMIT_BYTES
from celeriac.ops.standin.server import Standin, serve

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "api_messages.json").read_text())["vectors"]
SESSION = "s-0123456789abc"


def script(*entries: JsonObject) -> str:
    return "\n".join(json.dumps(entry) for entry in ({"v": 1}, *entries))


def says(value: str, *, turn: int = 1, **more: object) -> JsonObject:
    reply: JsonObject = {"content": [{"type": "text", "text": value}], "usage": {"input_tokens": 9, "output_tokens": 4}}
    return {"path": "s", "run": 1, "turn": turn, "reply": reply, **more}  # type: ignore[dict-item]  # any JSON


def fault(kind: str, **more: float | str) -> JsonObject:
    return {"path": "s", "run": 1, "turn": 1, "fault": {"kind": kind, **more}}


class Client:
    """Speaks plain HTTP with a stand-in."""

    def __init__(self, standin: Standin, http: httpx2.AsyncClient) -> None:
        self.standin = standin
        self.http = http

    def request(
        self, *, turn: int = 1, stream: bool = True, prompt: str = "hi", session: str = SESSION
    ) -> httpx2.Request:
        body: JsonObject = {
            "model": "m",
            "max_tokens": 100,
            "stream": stream,
            "messages": [{"role": "user", "content": prompt}],
        }
        headers = {"x-api-key": "k", "X-Celeriac-Call": f"s;1;{turn};1", "X-Celeriac-Session": session}
        return self.http.build_request("POST", "/v1/messages", content=orjson.dumps(body), headers=headers)

    async def ask(
        self, *, turn: int = 1, stream: bool = True, prompt: str = "hi", session: str = SESSION
    ) -> httpx2.Response:
        return await self.http.send(self.request(turn=turn, stream=stream, prompt=prompt, session=session))

    async def logged(self, wanted: Callable[[JsonObject], bool]) -> JsonObject:
        """The first log entry that fits, once it is there."""
        async with asyncio.timeout(5):
            return await self.standin.journal.wait_for(wanted)


@asynccontextmanager
async def running(text: str, log_path: Path | None = None, **options: float | Path) -> AsyncIterator[Client]:
    standin = Standin(parse_script(text, "f"), log_path, **options)  # type: ignore[arg-type]  # passed on as they are
    url = await standin.start()
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=5) as http:
            yield Client(standin, http)
    finally:
        await standin.aclose()


def event(name: str) -> Callable[[JsonObject], bool]:
    return lambda entry: entry["event"] == name


def names(stream: str) -> list[str]:
    return [line.removeprefix("event: ") for line in stream.splitlines() if line.startswith("event: ")]


@pytest.fixture
async def empty() -> AsyncIterator[Client]:
    async with running(script()) as client:
        yield client


@pytest.mark.parametrize("raw", [raw for raw in VECTORS if raw["verdict"] == 400], ids=lambda raw: raw["id"])
async def test_every_invalid_vector_is_refused_on_the_wire(raw: dict[str, object], empty: Client) -> None:
    extra = raw.get("request", {})
    assert isinstance(extra, dict)
    text = json.dumps({"model": "m", "max_tokens": 1024, "messages": raw["messages"], **extra})
    text = text.replace("<text of more tokens than the model's window>", "word " * 200_000)
    if raw["id"] == "A44":
        empty.standin.answers.remember("SIG-as-returned", "plan")
    response = await empty.http.post("/v1/messages", content=text.encode(), headers={"x-api-key": "k"})
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert [(entry["status"], entry["event"]) for entry in empty.standin.journal.entries] == [(400, "request")]


async def test_a_stream_has_the_events_of_the_api_and_a_ping(tmp_path: Path) -> None:
    async with running(script(says("hello")), tmp_path / "log", bodies_dir=tmp_path / "bodies") as client:
        response = await client.ask()
        await client.logged(event("end"))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert names(response.text)[:3] == ["message_start", "ping", "content_block_start"]
    assert names(response.text)[-2:] == ["message_delta", "message_stop"]
    request, end = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert (request["path"], request["run"], request["turn"], request["attempt"]) == ("s", 1, 1, 1)
    assert (request["status"], request["reason"], request["session"]) == (200, "", SESSION)
    assert len(request["messages_sha"]) == 64
    assert (end["event"], end["how"], end["client_left"]) == ("end", "complete", False)
    (kept,) = (tmp_path / "bodies").iterdir()
    assert kept.name == "00001-s-1-1-1.json"
    assert json.loads(kept.read_bytes())["messages"] == [{"role": "user", "content": "hi"}]


async def test_without_streaming_the_answer_is_one_message() -> None:
    async with running(script(says("hello"))) as client:
        message = (await client.ask(stream=False)).json()
    assert message["content"] == [{"type": "text", "text": "hello"}]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("end_turn", 4)


async def test_attempts_are_counted_by_session_and_call() -> None:
    async with running(script(fault("500"), says("second"), says("other", turn=2))) as client:
        answers = [
            (await client.ask(turn=turn, session=session)).status_code
            for turn, session in [(1, SESSION), (1, SESSION), (1, "s-other"), (2, SESSION)]
        ]
        assert answers == [500, 200, 500, 200]
        assert client.standin.unused() == []


async def test_an_answer_that_follows_a_call_comes_after_it() -> None:
    async with running(script(says("first"), says("later", turn=2, follows=[["s", 1, 1]]))) as client:
        later = asyncio.create_task(client.ask(turn=2))
        other = await client.ask(turn=1, session="s-9999999999999")  # another session's call does not count
        assert other.status_code == 200 and not later.done()
        assert (await client.ask(turn=1)).status_code == 200
        assert "later" in (await later).text
        asked = [(entry["session"], entry["turn"]) for entry in client.standin.journal.entries]
    assert asked.index((SESSION, 1)) < asked.index((SESSION, 2))


async def test_a_call_without_a_line_gets_500_and_says_which() -> None:
    async with running(script(says("x"))) as client:
        response = await client.ask(turn=7)
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "replay has no answer for s run 1 turn 7"
        assert client.standin.unused() == ["line 2: s run 1 turn 1 was not asked"]


async def test_a_request_that_diverged_gets_500() -> None:
    async with running(script(says("x", expect=["good"]))) as client:
        response = await client.ask(prompt="bad")
        assert response.status_code == 500
        assert "diverged at s run 1 turn 1" in response.text


async def test_a_client_that_names_no_call_gets_a_plain_answer(empty: Client) -> None:
    body = orjson.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]})
    response = await empty.http.post("/v1/messages", content=body, headers={"x-api-key": "k"})
    assert response.json()["content"] == [{"type": "text", "text": "ok"}]


async def test_requests_without_key_of_the_wrong_address_or_size_are_refused(empty: Client) -> None:
    assert (await empty.http.post("/v1/messages", content=b"{}")).json()["error"]["type"] == "authentication_error"
    assert (await empty.http.post("/v1/other", content=b"{}")).json()["error"]["type"] == "not_found_error"
    assert (await empty.http.get("/v1/messages")).status_code == 405
    large = b" " * (BODY_LIMIT_BYTES + 1)
    response = await empty.http.post("/v1/messages", content=large, headers={"x-api-key": "k"})
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")
    broken = {"x-api-key": "k", "X-Celeriac-Call": "s;one"}
    assert (await empty.http.post("/v1/messages", content=b"{}", headers=broken)).status_code == 400


@pytest.mark.parametrize(
    ("kind", "error"), [("429", "rate_limit_error"), ("500", "api_error"), ("529", "overloaded_error")]
)
async def test_faults_before_the_stream_are_error_statuses(kind: str, error: str) -> None:
    async with running(script(fault(kind, retry_after=2.5))) as client:
        response = await client.ask()
    assert (response.status_code, response.json()["error"]["type"]) == (int(kind), error)
    assert response.headers["retry-after"] == "2.5"


async def test_a_held_stream_is_logged_pinged_and_goes_on_when_released() -> None:
    async with running(script(says("hello", hold="content_block_stop:0")), ping_seconds=0.01) as client:
        response = await client.http.send(client.request(), stream=True)
        held = await client.logged(event("holding"))
        assert (held["after"], held["path"], held["why"]) == ("content_block_stop:0", "s", "hold")
        lines = response.aiter_lines()
        async with asyncio.timeout(5):
            while (await anext(lines)) != "event: content_block_stop":
                pass
            while (await anext(lines)) != "event: ping":
                pass
        other = await client.http.post("/_control/release", json={"path": "s/1.0"})
        assert other.json() == {"released": 0}
        assert (await client.http.post("/_control/release", json={"path": "s"})).json() == {"released": 1}
        rest = [line async for line in lines]
        assert "event: message_stop" in rest
        assert (await client.logged(event("end")))["how"] == "complete"


@pytest.mark.parametrize("entry", [says("hello", hold="message_start"), fault("stall")])
async def test_a_client_that_leaves_a_held_stream_is_logged(entry: JsonObject) -> None:
    async with running(script(entry)) as client:
        response = await client.http.send(client.request(), stream=True)
        await client.logged(event("holding"))
        await response.aclose()
        end = await client.logged(event("end"))
        assert (end["how"], end["client_left"]) == ("client_left", True)
        assert client.standin.holds == {}


async def test_a_client_that_leaves_between_two_events_is_logged() -> None:
    async with running(script(says("hello", pace_ms=60_000))) as client:
        response = await client.http.send(client.request(), stream=True)
        await client.logged(event("request"))
        await response.aclose()
        assert (await client.logged(event("end")))["client_left"]


async def test_serve_says_its_address_and_ends_when_cancelled(tmp_path: Path) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(script(says("x")), "f", log_path=tmp_path / "log", ready=ready.set_result))
    async with asyncio.timeout(5), httpx2.AsyncClient(base_url=await ready) as http:
        assert (await http.get("/")).status_code == 404
        server.cancel()
        await asyncio.wait([server])
        with pytest.raises(httpx2.ConnectError):
            await http.get("/")
