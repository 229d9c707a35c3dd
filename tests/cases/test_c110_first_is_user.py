"""C110: whatever is gone from the front or middle of a history, a request begins with the user and splits no pair."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line, NewLine, Origin, Role, text_block, tool_result_block
from celeriac.common.contract.task import State
from celeriac.common.llm.client import ApiMessage
from celeriac.common.llm.wire import dumps
from celeriac.common.runtime.pairs import LOST_RESULT, mended
from celeriac.common.runtime.turn import api_messages
from celeriac.common.testing.runs import Stage
from celeriac.common.testing.scripted import says, tool_use
from celeriac.ops.standin.validator import validate

ORIGINS: dict[Role, Origin] = {"user": Origin.TOOLS, "assistant": Origin.MODEL}


def line(role: Role, *content: JsonObject, seq: int = 0) -> Line:
    origin = ORIGINS[role]
    return Line(run=1, turn=1, role=role, content=content, origin=origin, seq=seq, token="1/a", time=1)


def exchange(count: int, *, calls: int = 1) -> list[Line]:
    """u1 a1 u2 a2 … with calls in the answers and their results beside the words of the user."""
    lines = [line("user", text_block("u1"))]
    for number in range(1, count):
        asked = [tool_use(f"t{number}_{n}", "Bash") for n in range(calls)]
        answered = [tool_result_block(str(block["id"]), "did it") for block in asked]
        lines += [line("assistant", text_block(f"a{number}"), *asked)]
        lines += [line("user", *answered, text_block(f"u{number + 1}"))]
    return lines


def is_legal(messages: tuple[ApiMessage, ...]) -> None:
    tools: list[JsonObject] = [{"name": "Bash", "input_schema": {"type": "object"}}]
    listed: list[JsonObject] = [{"role": message.role, "content": list(message.content)} for message in messages]
    body = dumps({"model": "m", "max_tokens": 1, "tools": [*tools], "messages": [*listed]})
    assert validate(body).reason == ""
    roles = [message.role for message in messages]
    assert roles[0] == "user" and all(left != right for left, right in itertools.pairwise(roles))


def sent(lines: list[Line]) -> tuple[ApiMessage, ...]:
    messages = api_messages((), mended(lines, "the prompt"))
    is_legal(messages)
    return messages


def test_the_oldest_message_is_dropped() -> None:
    messages = sent(exchange(3)[1:])
    assert messages[0].content == (text_block("the prompt"),)
    assert [message.content[0].get("text") for message in messages] == ["the prompt", "a1", None, "a2", None]


@pytest.mark.parametrize("drop", range(1, 9))
def test_any_number_of_messages_is_dropped_from_the_front(drop: int) -> None:
    left = exchange(5, calls=2)[drop:]
    assert words(sent(left)) == [*(["the prompt"] if drop % 2 else []), *words(left)]


def words(messages: Iterable[ApiMessage | Line]) -> list[str]:
    return [str(block["text"]) for message in messages for block in message.content if block["type"] == "text"]


def test_a_summary_that_was_stored_as_the_assistants_is_kept_behind_the_prompt() -> None:
    summary = line("assistant", text_block("What has happened so far."))
    messages = sent([summary, *exchange(2)])
    assert [message.role for message in messages][:3] == ["user", "assistant", "user"]
    assert messages[1].content == summary.content


def test_a_history_of_which_nothing_is_left_is_its_prompt() -> None:
    assert [message.content for message in sent([])] == [(text_block("the prompt"),)]
    assert [message.content for message in sent([line("user", tool_result_block("t1", "x"))])] == [
        (text_block("the prompt"),)
    ]


def test_a_call_whose_results_are_gone_is_told_so() -> None:
    lines = exchange(4, calls=2)
    del lines[2]
    messages = sent(lines)
    results = [block for block in messages[2].content if block["type"] == "tool_result"]
    assert [(block["tool_use_id"], block["content"], block["is_error"]) for block in results] == [
        ("t1_0", LOST_RESULT, True),
        ("t1_1", LOST_RESULT, True),
    ]


def test_one_of_two_results_is_gone() -> None:
    lines = exchange(2, calls=2)
    lines[2] = line("user", *lines[2].content[1:])
    assert {block.get("tool_use_id") for block in sent(lines)[2].content} == {"t1_0", "t1_1", None}


def test_the_last_call_is_left_to_whoever_goes_on() -> None:
    lines = exchange(3)[:-1]
    assert mended(lines, "the prompt") == tuple(lines)


def test_what_is_legal_comes_back_as_it_is() -> None:
    lines = exchange(6, calls=3)
    assert all(left is right for left, right in zip(mended(lines, "x"), lines, strict=True))


@given(st.integers(1, 6), st.integers(0, 3), st.sets(st.integers(0, 12)))
def test_whatever_lines_are_missing(count: int, calls: int, gone: set[int]) -> None:
    lines = [one for at, one in enumerate(exchange(count, calls=calls)) if at not in gone]
    made = mended(lines, "the prompt")
    assert mended(made, "the prompt") == made
    if made[-1].role == "user":
        is_legal(api_messages((), made))


@pytest.mark.parametrize("drop", [1, 2, 3, 4])
async def test_a_run_goes_on_from_such_a_history(drop: int, stage: Stage) -> None:
    record = await stage.create()
    lease = await stage.claim(record)
    stored = [NewLine(**dict(one)) for one in _new(exchange(4, calls=2)[drop:])]
    await lease.append(stored)
    await lease.release()
    now = await stage.substrate.records.get(record.task_id)
    model = await stage.play(now, await stage.claim(now), [says("done")])
    is_legal(model.requests[0].messages)
    assert (await stage.substrate.records.get(record.task_id)).state is State.COMPLETED


def _new(lines: list[Line]) -> list[dict[str, object]]:
    return [one.model_dump(exclude={"seq", "token", "time"}) for one in lines]
