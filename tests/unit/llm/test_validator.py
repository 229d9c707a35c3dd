"""The validator against the vectors, and the rules behind them with other examples."""

import base64
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.llm.sse_script import sign
from celeriac.ops.standin.validator import WINDOW_TOKENS, validate

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "api_messages.json").read_text())["vectors"]
SIGNATURES = {"SIG-as-returned": "plan"}
"""What the vectors assume that the server had said (A44)."""
TOOL: JsonObject = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
THINKING_ON: JsonObject = {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 8192}
MARK: JsonObject = {"type": "ephemeral"}


class Vector(NamedTuple):
    name: str
    verdict: str | int
    body: bytes


def load(raw: dict[str, object]) -> Vector:
    """The vector with its generated strings, as the bytes of a request."""
    request = raw.get("request", {})
    assert isinstance(request, dict)
    body = json.dumps({"model": "m", "max_tokens": 1024, "messages": raw["messages"], **request})
    body = body.replace("<text of more tokens than the model's window>", "word " * WINDOW_TOKENS)
    verdict = raw["verdict"]
    assert isinstance(verdict, str | int)
    return Vector(str(raw["id"]), verdict, body.encode())


ALL = [load(raw) for raw in VECTORS]


@pytest.mark.parametrize("vector", ALL, ids=lambda vector: vector.name)
def test_every_vector_gets_its_verdict(vector: Vector) -> None:
    verdict = validate(vector.body, signatures=SIGNATURES)
    assert (verdict.valid, verdict.status) == ((False, 400) if vector.verdict == 400 else (True, 200)), verdict
    assert bool(verdict.reason) is not verdict.valid
    if isinstance(vector.verdict, str) and vector.verdict != "valid":
        assert verdict.warnings


def user(*content: JsonValue) -> JsonObject:
    return {"role": "user", "content": list(content)}


def assistant(*content: JsonValue) -> JsonObject:
    return {"role": "assistant", "content": list(content)}


def text(value: JsonValue = "x", **more: JsonValue) -> JsonObject:
    return {"type": "text", "text": value, **more}


def call(id_: JsonValue = "t1", **more: JsonValue) -> JsonObject:
    return {"type": "tool_use", "id": id_, "name": "Bash", "input": {}, **more}


def result(id_: JsonValue = "t1", **more: JsonValue) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": id_, "content": "out", **more}


def thinking(value: str = "plan") -> JsonObject:
    return {"type": "thinking", "thinking": value, "signature": "SIG-as-returned"}


def image(media_type: str, data: bytes) -> JsonObject:
    source: JsonObject = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def body(*messages: JsonObject, **more: JsonValue) -> JsonObject:
    return {"model": "m", "max_tokens": 1024, "messages": list(messages), "tools": [TOOL], **more}


def pair(*, before: tuple[JsonObject, ...] = (), answer: JsonObject | None = None) -> tuple[JsonObject, ...]:
    return user(text()), assistant(*before, call()), user(answer or result())


def schema(**more: JsonValue) -> JsonObject:
    return body(user(text()), tools=[{"name": "t", "input_schema": {"type": "object", **more}}])


PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
VALID = {
    "parallel results in another order": body(
        user(text()), assistant(call("a"), call("b")), user(result("b"), result("a"), text())
    ),
    "a chain of calls": body(
        user(text()), assistant(call("a")), user(result("a")), assistant(call("b")), user(result("b"))
    ),
    "an unknown top-level field": body(user(text()), novelty=1),
    "blocks of server tools": body(
        user(text()), assistant({"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}), user(text())
    ),
    "four marks": body(
        user(text(cache_control=MARK), text(cache_control=MARK)),
        system=[text(cache_control=MARK)],
        tools=[{**TOOL, "cache_control": MARK}],
    ),
    "a long mark before a short one": body(user(text(cache_control={**MARK, "ttl": "1h"}), text(cache_control=MARK))),
    "thinking in the loop": body(*pair(before=(thinking(),)), **THINKING_ON),
    "redacted thinking in the loop": body(*pair(before=({"type": "redacted_thinking", "data": "x"},)), **THINKING_ON),
    "thinking at the start of the loop only": body(
        *pair(before=(thinking(),)), assistant(call("t2")), user(result("t2")), **THINKING_ON
    ),
    "no thinking in an earlier turn": body(*pair(), assistant(text()), user(text()), **THINKING_ON),
    "adaptive thinking asks for no block": body(*pair(), thinking={"type": "adaptive"}),
    "tool choice auto with thinking": body(user(text()), tool_choice={"type": "auto"}, **THINKING_ON),
    "a named tool": body(user(text()), tool_choice={"type": "tool", "name": "Bash"}),
    "the right image": body(user(image("image/png", PNG), text())),
    "an image in a result": body(*pair(answer=result(content=[text(), image("image/png", PNG)]))),
    "an error with text": body(*pair(answer=result(content="exit 1", is_error=True))),
    "an empty list as result": body(*pair(answer=result(content=[]))),
    "a whole surrogate pair": body(user(text("😀"))),
    "an empty final assistant message": body(user(text()), {"role": "assistant", "content": ""}),
    "a server's own tool": body(user(text()), tools=[{"type": "bash_20250124", "name": "bash"}]),
    "a name of 128 characters": body(user(text()), tools=[{**TOOL, "name": "x" * 128}]),
    "deep nesting": body(user(text()), assistant(call(input={"a": json.loads("[" * 200 + "]" * 200)})), user(result())),
}
INVALID = {
    "no model": {"max_tokens": 1, "messages": [user(text())]},
    "model is no string": body(user(text()), model=3),
    "no max_tokens": {"model": "m", "messages": [user(text())]},
    "negative max_tokens": body(user(text()), max_tokens=-1),
    "max_tokens as text": body(user(text()), max_tokens="10"),
    "max_tokens true": body(user(text()), max_tokens=True),
    "more output than the window": body(user(text()), max_tokens=WINDOW_TOKENS + 1),
    "no messages field": {"model": "m", "max_tokens": 1},
    "messages is no list": {"model": "m", "max_tokens": 1, "messages": {}},
    "a message is no object": {"model": "m", "max_tokens": 1, "messages": ["hi"]},
    "first message by the assistant": body(assistant(text()), user(text())),
    "an unknown role": body(user(text()), {"role": "tool", "content": "x"}),
    "no role": body({"content": "x"}),
    "no content": body({"role": "user"}),
    "content null": body({"role": "user", "content": None}),
    "an extra field of a message": body({"role": "user", "content": "x", "name": "bob"}),
    "an empty string": body({"role": "user", "content": ""}),
    "an empty string in the middle": body(user(text()), {"role": "assistant", "content": ""}, user(text())),
    "an empty text block": body(user(text(""))),
    "tabs only": body(user(text("\t \n"))),
    "text is no string": body(user(text(3))),
    "an unknown block type": body(user({"type": "video", "url": "x"})),
    "a block without type": body(user({"text": "x"})),
    "an extra field of a block": body(user(text(note="x"))),
    "a string among blocks": body(user("x")),
    "the call is the end": body(user(text()), assistant(call())),
    "the result comes too late": body(user(text()), assistant(call()), user(text()), assistant(text()), user(result())),
    "the same result twice": body(user(text()), assistant(call()), user(result(), result())),
    "a result of an older turn": body(*pair(), assistant(text()), user(result())),
    "one result too many": body(user(text()), assistant(call()), user(result(), result("t9"))),
    "text between results": body(user(text()), assistant(call("a"), call("b")), user(result("a"), text(), result("b"))),
    "a user message before the results": body(user(text()), assistant(call()), user(text()), user(result())),
    "a result from the assistant": body(user(text()), assistant(result()), user(text())),
    "thinking from the user": body(user(thinking(), text())),
    "an id with a dot": body(user(text()), assistant(call("a.b")), user(result("a.b"))),
    "no id": body(user(text()), assistant({"type": "tool_use", "name": "Bash", "input": {}}), user(text())),
    "input null": body(user(text()), assistant(call(input=None)), user(result())),
    "input a list": body(user(text()), assistant(call(input=[])), user(result())),
    "no input": body(user(text()), assistant({"type": "tool_use", "id": "t1", "name": "Bash"}), user(result())),
    "an error without content": body(
        user(text()), assistant(call()), user({"type": "tool_result", "tool_use_id": "t1", "is_error": True})
    ),
    "an error with an empty list": body(*pair(answer=result(content=[], is_error=True))),
    "a blank text in a result": body(*pair(answer=result(content=[text(" ")]))),
    "a call in a result": body(*pair(answer=result(content=[call()]))),
    "result content a number": body(*pair(answer=result(content=3))),
    "is_error as text": body(*pair(answer=result(is_error="yes"))),
    "trailing white space of a prefill": body(user(text()), {"role": "assistant", "content": "Sure: "}),
    "trailing white space of a prefill's block": body(user(text()), assistant(text("Sure\n"))),
    "a prefill with thinking on": body(user(text()), assistant(text("Sure")), **THINKING_ON),
    "the start of the loop without thinking": body(
        *pair(), assistant(thinking(), call("t2")), user(result("t2")), **THINKING_ON
    ),
    "thinking without signature": body(user(text()), assistant({"type": "thinking", "thinking": "x"}), user(text())),
    "thinking with another text": body(*pair(before=(thinking("other"),)), **THINKING_ON),
    "thinking with our signature and another text": body(
        *pair(before=({"type": "thinking", "thinking": "b", "signature": sign("a")},)), **THINKING_ON
    ),
    "a small budget": body(user(text()), thinking={"type": "enabled", "budget_tokens": 1023}, max_tokens=4096),
    "no budget": body(user(text()), thinking={"type": "enabled"}),
    "an unknown kind of thinking": body(user(text()), thinking={"type": "deep"}),
    "a named tool with thinking": body(user(text()), tool_choice={"type": "tool", "name": "Bash"}, **THINKING_ON),
    "an unknown tool chosen": body(user(text()), tool_choice={"type": "tool", "name": "Nope"}),
    "an unknown choice": body(user(text()), tool_choice={"type": "some"}),
    "a choice without tools": body(user(text()), tools=[], tool_choice={"type": "any"}),
    "a low temperature with thinking": body(user(text()), temperature=0.2, **THINKING_ON),
    "temperature 2": body(user(text()), temperature=2),
    "stream as text": body(user(text()), stream="yes"),
    "an empty stop sequence": body(user(text()), stop_sequences=[" "]),
    "two tools of one name": body(user(text()), tools=[TOOL, TOOL]),
    "an empty tool name": body(user(text()), tools=[{**TOOL, "name": ""}]),
    "a name with a line end": body(user(text()), tools=[{**TOOL, "name": "Bash\n"}]),
    "a name of 129 characters": body(user(text()), tools=[{**TOOL, "name": "x" * 129}]),
    "a tool without schema": body(user(text()), tools=[{"name": "t"}]),
    "a schema of another type": body(user(text()), tools=[{"name": "t", "input_schema": {"type": "string"}}]),
    "a schema without type": body(user(text()), tools=[{"name": "t", "input_schema": {}}]),
    "top-level anyOf": schema(anyOf=[]),
    "top-level allOf": schema(allOf=[{}]),
    "a property name with a space": schema(properties={"a b": {}}),
    "a property of no known type": schema(properties={"a": {"type": "str"}}),
    "tools is no list": body(user(text()), tools={}),
    "five marks over the whole request": body(
        user(text(cache_control=MARK), text(cache_control=MARK)),
        system=[text(cache_control=MARK), text(cache_control=MARK)],
        tools=[{**TOOL, "cache_control": MARK}],
    ),
    "a mark of another type": body(user(text(cache_control={"type": "forever"}))),
    "a mark on thinking": body(*pair(before=({**thinking(), "cache_control": MARK},)), **THINKING_ON),
    "a long mark after a short one": body(user(text(cache_control=MARK), text(cache_control={**MARK, "ttl": "1h"}))),
    "a blank system block": body(user(text()), system=[text("")]),
    "an image as system": body(user(text()), system=[image("image/png", PNG)]),
    "a png called jpeg": body(user(image("image/jpeg", PNG))),
    "bytes of no image": body(user(image("image/png", b"hello"))),
    "an image type that is not taken": body(user(image("image/bmp", b"BM"))),
    "data that is no base64": body(
        user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "###"}})
    ),
    "an image from the assistant": body(user(text()), assistant(image("image/png", PNG)), user(text())),
    "a large image": body(user(image("image/png", PNG + bytes(5 * 1024 * 1024)))),
}


@pytest.mark.parametrize("request_body", VALID.values(), ids=VALID.keys())
def test_what_the_api_takes_is_taken(request_body: JsonObject) -> None:
    assert validate(request_body, signatures=SIGNATURES).reason == ""


@pytest.mark.parametrize("request_body", INVALID.values(), ids=INVALID.keys())
def test_what_the_api_refuses_is_refused(request_body: JsonObject) -> None:
    verdict = validate(request_body, signatures=SIGNATURES)
    assert (verdict.valid, verdict.status) == (False, 400)
    assert validate(json.dumps(request_body).encode(), signatures=SIGNATURES) == verdict


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"null", b"[]", b'"x"', b"\xff", b'{"a":NaN}', b'{"a":"\\udc00"}', b'{"model":"\xed\xa0\xbd"}']
)
def test_bytes_that_are_no_json_object_are_refused(raw: bytes) -> None:
    assert validate(raw).status == 400


def test_the_window_is_counted_in_bytes_and_told_as_the_server_tells_it() -> None:
    verdict = validate(body(user(text("é" * 50)), max_tokens=1, tools=[]), window=20)
    assert verdict.reason == "prompt is too long: 27 tokens > 20 maximum"
    assert (
        "exceed context limit: 27 + 5 > 30"
        in validate(body(user(text("é" * 50)), max_tokens=5, tools=[]), window=30).reason
    )
