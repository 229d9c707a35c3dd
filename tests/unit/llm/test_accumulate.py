"""From raw events to blocks (cases C56, C82, C107)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Usage
from celeriac.common.llm import accumulate
from celeriac.common.llm.accumulate import NOTHING_YET, Accumulator
from celeriac.common.llm.client import (
    BlockDone,
    BrokenStream,
    Finished,
    ModelEvent,
    Overloaded,
    Pulse,
    RateLimited,
    RawEvent,
    Started,
    TextDelta,
)
from celeriac.common.llm.sse_script import Answer, SseEvent, cut, expand, labels

USAGE: JsonObject = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 3,
    "output_tokens": 40,
}


def answer(*content: JsonObject, stop_reason: str | None = "end_turn") -> Answer:
    return Answer("msg_1", "m", content, stop_reason, USAGE)


def run(events: list[SseEvent], *, close: bool = True, raw: bool = False) -> list[ModelEvent]:
    accumulator = Accumulator(raw=raw)
    out = [event for sse in events for event in accumulator.feed(sse.name, sse.data)]
    if close:
        accumulator.close()
    return out


def blocks(events: list[ModelEvent]) -> list[JsonObject]:
    return [event.block for event in events if isinstance(event, BlockDone)]


def text(value: str) -> JsonObject:
    return {"type": "text", "text": value}


def call(value: JsonObject) -> JsonObject:
    return {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": value}


def tool_events(*pieces: str, stop_reason: str = "tool_use", more: bool = False) -> list[SseEvent]:
    """An answer with one tool call whose input comes in these pieces; `more`: a text follows it."""
    events = expand(answer(call({"x": 1}), *([text("more")] if more else []), stop_reason=stop_reason))
    deltas = [
        SseEvent("content_block_delta", {"index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}})
        for piece in pieces
    ]
    return [*events[:2], *deltas, *(event for event in events[2:] if event.label != "content_block_delta:0")]


def test_a_whole_answer_gives_its_blocks_text_and_merged_usage() -> None:
    content: tuple[JsonObject, ...] = (
        {"type": "thinking", "thinking": "a plan of some length, in pieces", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xx"},
        text("Hello, this is the answer"),
        call({"command": "ls -la", "nested": {"a": [1, None, "é"]}}),
        {"type": "brand_new", "payload": {"k": 1}},
    )
    events = run(expand(answer(*content)))
    usage = Usage(input_tokens=10, cache_creation_input_tokens=2, cache_read_input_tokens=3, output_tokens=40)
    assert blocks(events) == list(content)
    assert events[0] == Started("m", usage.model_copy(update={"output_tokens": 1}))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello, this is the answer"
    assert events[-1] == Finished("end_turn", usage)


def test_blank_text_blocks_are_dropped_and_the_others_keep_their_index() -> None:
    events = run(expand(answer(text("\n\n"), call({"a": 1}), text(""))))
    assert [event.index for event in events if isinstance(event, BlockDone)] == [1]


def test_a_call_whose_input_was_cut_is_never_given_out() -> None:
    events = run(tool_events('{"command": "rm -rf /tmp/x', stop_reason="max_tokens"))
    assert blocks(events) == []
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("joined", ["[1]", '"text"', "3", "null", "{", "nonsense", '{"a":NaN}'])
def test_an_input_that_is_no_object_is_a_cut_block(joined: str) -> None:
    assert blocks(run(tool_events(joined, stop_reason="max_tokens"))) == []


def test_an_answer_that_lacks_a_call_and_was_not_cut_is_broken() -> None:
    for events in (tool_events("{"), expand(answer(text("I call"), stop_reason="tool_use"))):
        with pytest.raises(BrokenStream, match="not whole"):
            run(events)


@pytest.mark.parametrize("pieces", [(), ("",), ("", "{}")])
def test_a_call_without_input_has_an_empty_one(pieces: tuple[str, ...]) -> None:
    assert blocks(run(tool_events(*pieces))) == [call({})]


def test_a_call_cut_before_its_input_began_is_not_taken_for_one_without_input() -> None:
    assert blocks(run(tool_events("", stop_reason="max_tokens"))) == []


def test_a_call_without_input_is_whole_once_another_block_follows() -> None:
    events = tool_events("", stop_reason="max_tokens", more=True)
    assert blocks(run(events)) == [call({}), text("more")]


def test_lone_surrogates_of_an_input_become_replacement_characters() -> None:
    assert blocks(run(tool_events('{"a":"x\\ud83d', '"}'))) == [call({"a": "x\ufffd"})]


def test_unknown_events_and_unknown_deltas_are_ignored() -> None:
    events = expand(answer(text("hello")))
    strange = [
        SseEvent("new_kind", {"type": "new_kind", "anything": 1}),
        SseEvent("ping", {"type": "ping"}),
        SseEvent("content_block_delta", {"index": 0, "delta": {"type": "new_delta", "x": 1}}),
    ]
    assert run([*events[:2], *strange, *events[2:]]) == run(events)


@pytest.mark.parametrize("position", range(6))
def test_an_early_end_is_a_broken_stream_that_names_the_last_event(position: int) -> None:
    events = expand(answer(text("half")))[:position]
    with pytest.raises(BrokenStream) as caught:
        run(events)
    assert caught.value.after == (events[-1].label if events else NOTHING_YET)


@pytest.mark.parametrize("stop_reason", [None, ""])
def test_an_answer_without_a_stop_reason_is_broken(stop_reason: str | None) -> None:
    with pytest.raises(BrokenStream, match="stop_reason"):
        run(expand(answer(text("half"), stop_reason=stop_reason)))


def test_an_answer_whose_block_has_no_end_is_broken() -> None:
    events = [event for event in expand(answer(text("half"))) if event.name != "content_block_stop"]
    with pytest.raises(BrokenStream, match="block 0"):
        run(events)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("content_block_start", {"index": 0, "content_block": {"type": "text"}}),
        ("content_block_start", {"content_block": {}}),
        ("content_block_delta", {"index": 5, "delta": {}}),
        ("content_block_delta", {"index": 0}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta"}}),
        ("content_block_stop", {"index": "0"}),
        ("message_start", {"message": {}}),
        ("message_delta", {}),
    ],
)
def test_events_out_of_place_or_shape_break_the_stream(name: str, data: JsonObject) -> None:
    events = expand(answer(text("half")))[:2]
    with pytest.raises(BrokenStream) as caught:
        run([*events, SseEvent(name, data)])
    assert caught.value.after == "content_block_start:0"


def error_event(kind: str) -> SseEvent:
    return SseEvent("error", {"type": "error", "error": {"type": kind, "message": "m"}})


def test_an_error_event_before_the_answer_keeps_its_meaning_and_inside_it_breaks_the_stream() -> None:
    with pytest.raises(Overloaded):
        run([error_event("overloaded_error")])
    with pytest.raises(RateLimited):
        run([error_event("rate_limit_error")])
    with pytest.raises(BrokenStream, match="overloaded_error"):
        run([expand(answer())[0], error_event("overloaded_error")])


def test_a_retried_answer_gives_the_same_block_once_per_accumulator() -> None:
    events = expand(answer(call({"a": 1})))
    first = run(cut(events, "content_block_stop:0"), close=False)
    assert blocks(first) == blocks(run(events)) == [call({"a": 1})]
    stop = events[-3]
    with pytest.raises(BrokenStream):
        run([*events[:-2], stop])


def test_null_counts_leave_the_earlier_ones() -> None:
    events = expand(answer(text("x")))
    nulls: JsonObject = {"input_tokens": None, "output_tokens": 7}
    closing = SseEvent("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": nulls})
    finished = run([*events[:-2], closing, events[-1]])[-1]
    assert isinstance(finished, Finished)
    assert (finished.usage.input_tokens, finished.usage.output_tokens) == (10, 7)


def test_raw_events_come_before_what_they_complete_and_without_pings() -> None:
    events = expand(answer(text("x")))
    out = run([events[0], SseEvent("ping", {"type": "ping"}), *events[1:]], raw=True)
    assert [event.event for event in out if isinstance(event, RawEvent)] == [sse.data for sse in events]
    assert isinstance(out[0], RawEvent)


def test_citations_are_collected() -> None:
    events = expand(answer(text("cited")))
    cited = SseEvent("content_block_delta", {"index": 0, "delta": {"type": "citations_delta", "citation": {"n": 1}}})
    assert blocks(run([*events[:3], cited, *events[3:]])) == [{**text("cited"), "citations": [{"n": 1}]}]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.lists(
    st.builds(text, st.text(max_size=80).filter(str.strip))
    | st.builds(call, st.dictionaries(st.text(), JSON_VALUES, max_size=3)),
    max_size=4,
)


@given(BLOCKS)
def test_expanding_and_accumulating_gives_back_any_content(content: list[JsonObject]) -> None:
    events = expand(answer(*content))
    assert blocks(run(events)) == content
    named = list(dict.fromkeys(event.label for event in events))
    assert named == labels(str(block["type"]) for block in content)


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_long_call_or_thinking_gives_signs_of_life_now_and_then(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(accumulate, "PULSE_SECONDS", seconds)
    thinking = expand(answer({"type": "thinking", "thinking": "hm", "signature": "s"}, text("so")))
    pulses = [event for event in run([*thinking]) if isinstance(event, Pulse)]
    pulses += [event for event in run(tool_events("{}")) if isinstance(event, Pulse)]
    assert bool(pulses) == (seconds == 0.0)
