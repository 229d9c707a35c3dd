"""The bytes of a request: a stable prefix and at most four cache marks."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.llm.client import ApiMessage, BadRequest, CallKey, Joined, Request
from celeriac.common.llm.request_body import encode
from celeriac.ops.standin.validator import validate

TOOL = {"name": "Bash", "input_schema": {"type": "object"}}
THINKING: JsonObject = {"type": "thinking", "thinking": "plan", "signature": "sig"}


def text(value: str) -> JsonObject:
    return {"type": "text", "text": value}


def request(*messages: ApiMessage, system: tuple[JsonObject, ...] = (), tools: bytes | None = None) -> Request:
    key = CallKey(TaskId("s-0123456789abc"), "s", 1, 1)
    return Request(key, "m", 1000, system, orjson.dumps([TOOL]) if tools is None else tools, messages)


def turn(number: int, results: int, *extra: JsonObject) -> tuple[ApiMessage, ApiMessage]:
    ids = [f"toolu_{number}_{index}" for index in range(results)]
    calls: list[JsonObject] = [{"type": "tool_use", "id": one, "name": "Bash", "input": {}} for one in ids]
    answers: list[JsonObject] = [{"type": "tool_result", "tool_use_id": one, "content": "x"} for one in ids]
    return ApiMessage.of("assistant", (THINKING, *calls)), ApiMessage.of("user", (*answers, *extra))


def marks(body: bytes) -> list[str]:
    """Where the cache marks are: `system.0`, `messages.2.0`."""
    value = orjson.loads(body)
    found = [f"system.{index}" for index, block in enumerate(value.get("system", [])) if "cache_control" in block]
    for number, message in enumerate(value["messages"]):
        content = message["content"]
        found += [f"messages.{number}.{index}" for index, block in enumerate(content) if "cache_control" in block]
    return found


FIRST = ApiMessage.of("user", (text("go"),))


def test_marks_stand_at_the_stable_system_the_whole_system_and_the_last_block() -> None:
    system = (text("role"), text("stable"), text("today"))
    body = encode(request(FIRST, *turn(1, 2, text("note")), system=system))
    assert marks(body) == ["system.1", "system.2", "messages.2.2"]
    assert validate(body).valid


def test_a_long_parallel_turn_gets_a_mark_within_reach_of_the_one_before() -> None:
    body = encode(request(FIRST, *turn(1, 12), system=(text("a"), text("b"))))
    assert marks(body) == ["system.0", "system.1", "messages.2.0", "messages.2.11"]
    body = encode(request(FIRST, *turn(1, 40)))
    assert marks(body) == ["messages.1.19", "messages.2.39"]


def test_blocks_that_cannot_carry_a_mark_are_skipped() -> None:
    message = ApiMessage.of("user", (text("go"), THINKING))
    assert marks(encode(request(message))) == ["messages.0.0"]


def test_all_but_the_marked_messages_are_the_kept_bytes() -> None:
    odd = ApiMessage("user", (text("go"),), b'{"role": "user",  "content": "kept as it is"}')
    body = encode(request(odd, *turn(1, 1)))
    assert odd.wire in body
    longer = encode(request(odd, *turn(1, 1), *turn(2, 1)))
    shared = body[: body.index(b'{"role":"user","content":[{"type":"tool_result"')]
    assert longer.startswith(shared)


def test_what_a_run_keeps_joined_does_not_change_its_bytes() -> None:
    first, second, third = turn(1, 2), turn(2, 12), turn(3, 1)
    other = ApiMessage.of("user", (text("a summary of it all"),))
    histories = [(FIRST,), (FIRST, *first), (FIRST, *first, *second), (FIRST, *first, *second)]
    histories += [(FIRST, *first, *second, *third), (other, *second, *third), (other, *third), (other,)]
    kept = Joined()
    for history in histories:
        assert encode(replace(request(*history), joined=kept)) == encode(request(*history))


def test_messages_are_joined_once() -> None:
    kept, known = Joined(), (FIRST, *turn(1, 1))
    kept.of(known)
    spoiled = tuple(replace(message, wire=b"read again") for message in known)
    assert b"read again" not in kept.of((*known, *turn(2, 1)))
    assert b"read again" in kept.of((*spoiled, *turn(2, 1)))


def test_empty_tools_and_system_are_left_out() -> None:
    assert set(orjson.loads(encode(request(FIRST, tools=b"[]")))) == {"model", "max_tokens", "stream", "messages"}


@pytest.mark.parametrize("messages", [(), turn(1, 1)[:1], (FIRST, ApiMessage.of("assistant", (text("Sure"),)))])
def test_a_request_that_does_not_end_with_the_user_is_not_sent(messages: tuple[ApiMessage, ...]) -> None:
    with pytest.raises(BadRequest):
        encode(request(*messages))


def test_lone_surrogates_do_not_leave() -> None:
    system: tuple[JsonObject, ...] = (text("cut \ud83d"),)
    message = ApiMessage("user", (text("a\udcff"),), b"")
    assert validate(encode(request(message, system=system))).valid


@given(st.lists(st.integers(1, 45), max_size=4), st.integers(0, 4))
def test_every_request_is_valid_with_at_most_four_marks(results: list[int], system: int) -> None:
    turns = [message for number, count in enumerate(results) for message in turn(number, count)]
    body = encode(request(FIRST, *turns, system=tuple(text(f"part {index}") for index in range(system))))
    assert validate(body).reason == ""
    assert marks(body)[-1] == f"messages.{len(turns)}.{(results or [1])[-1] - 1}"
