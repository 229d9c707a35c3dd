"""The replay format: every kind of rubbish is told with its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract.errors import BadReplay
from celeriac.common.contract.task import Limits, Mode
from celeriac.common.llm.client import ReplayFailed
from celeriac.common.llm.script import CallId, Script, parse_script, tool_use_id

HEADER = '{"v":1,"job":{"prompt":"go"}}'
REPLY = '"reply":{"content":[{"type":"text","text":"hi"}]}'
S1 = CallId("s", 1, 1)


def line(*, path: str = "s", run: int = 1, turn: int = 1, rest: str = REPLY) -> str:
    return f'{{"path":"{path}","run":{run},"turn":{turn},{rest}}}'


def script(*lines: str) -> Script:
    return parse_script("\n".join([HEADER, *lines]), "f.jsonl")


def block(text: str) -> str:
    return line(rest=f'"reply":{{"content":[{text}]}}')


def test_the_header_describes_the_job() -> None:
    job = {
        "prompt": "fix it",
        "mode": "acceptEdits",
        "allowed_tools": ["Bash(pytest *)"],
        "limits": {"turns": 5, "usd": 1.5, "seconds": 60},
    }
    parsed = parse_script(json.dumps({"v": 1, "job": job}) + "\n\n" + line() + "\r\n", "f")
    assert parsed.job.prompt == "fix it"
    assert (parsed.job.mode, parsed.job.allowed_tools) == (Mode.ACCEPT_EDITS, ("Bash(pytest *)",))
    assert parsed.job.limits == Limits(turns=5, usd=1.5, seconds=60)
    assert parsed.lines[S1][0].number == 3


def test_a_byte_order_mark_and_a_bare_header_are_fine() -> None:
    assert parse_script('\ufeff{"v":1}', "f").lines == {}


@pytest.mark.parametrize(
    ("text", "number", "why"),
    [
        ("", 1, "empty"),
        ("\n \n", 1, "empty"),
        (line(), 1, "header"),
        ('\n{"v":2}', 2, "version 2"),
        ('{"v":true}', 1, "version true"),
        ('{"v":1,"jobs":{}}', 1, "jobs: unknown field"),
        ('{"v":1,"job":{"promt":"x"}}', 1, "job.promt: unknown field"),
        ('{"v":1,"job":{"mode":"wild"}}', 1, "job.mode"),
        ('{"v":1,"job":{"limits":{"turns":0}}}', 1, "job.limits.turns"),
        ("[1]", 1, "must be a JSON object"),
        ("garbage", 1, "not JSON"),
    ],
)
def test_bad_headers(text: str, number: int, why: str) -> None:
    with pytest.raises(BadReplay) as caught:
        parse_script(text, "f.jsonl")
    assert caught.value.line == number
    assert f"f.jsonl, line {number}: " in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "not JSON"),
        ("3", "must be a JSON object"),
        (HEADER, "second header"),
        ('{"path":"s","path":"s","run":1,"turn":1}', "'path' stands twice"),
        (line(rest=REPLY + ',"follows":["s"]'), "follows.0"),
        (line(rest='"reply":{"content":[]},"x":NaN'), "NaN"),
        (line(rest=REPLY + ',"extra":1'), "extra: unknown field"),
        ('{"path":"s","run":1,' + REPLY + "}", "turn"),
        (line(run=0), "run"),
        ('{"path":"s","run":"1","turn":1,' + REPLY + "}", "run"),
        ('{"path":"s","run":true,"turn":1,' + REPLY + "}", "run"),
        (line(turn=0), "turn"),
        (line(path=""), "path"),
        (line(path="t"), "path"),
        (line(path="s/1"), "path"),
        (line(path="s/0.0"), "path"),
        (line(path="s/1:1.0"), "path"),
        (line(path="s/01.0"), "path"),
        (line(path="s/1.0/"), "path"),
        (line(rest='"fp":"sha256:12",' + REPLY), "fp"),
        (line(rest='"expect":"text",' + REPLY), "expect"),
        (line(rest='"expect":["("],' + REPLY), "no regular expression"),
        (line(rest='"repeat":0,' + REPLY), "repeat"),
        (line(rest='"pace_ms":-1,' + REPLY), "pace_ms"),
        (line(rest='"expect":[]'), "needs a reply or a fault"),
        (line(rest='"reply":{}'), "reply.content"),
        (line(rest='"reply":{"content":[],"stop":"x"}'), "reply.stop: unknown field"),
        (line(rest='"reply":{"content":[],"usage":{"tokens":1}}'), "reply.usage.tokens: unknown field"),
        (line(rest='"reply":{"content":[],"usage":{"input_tokens":-1}}'), "reply.usage.input_tokens"),
        (block('{"text":"x"}'), "needs a type"),
        (block('"x"'), "reply.content.0"),
        (block('{"type":"text"}'), "'text', a string"),
        (block('{"type":"text","text":"x","txt":"y"}'), "'txt'"),
        (block('{"type":"tool_use","name":"Bash"}'), "'input', an object"),
        (block('{"type":"tool_use","name":"a.b","input":{}}'), "no tool name"),
        (block('{"type":"tool_result","tool_use_id":"x"}'), "tool_result"),
        (block('{"type":"text","text":"{{task:s/x}}"}'), "no task path"),
        (block('{"type":"text","text":"\\ud83d"}'), "Invalid JSON"),
        ("[" * 100_000, "nested too deeply"),
        (line(rest='"fault":{"kind":"explode"}'), "fault.kind"),
        (line(rest='"fault":{"kind":"429","after":"message_start"}'), "before the stream"),
        (line(rest='"fault":{"kind":"500"},"hold":"message_start"'), "no stream to hold"),
        (line(rest='"fault":{"kind":"reset","after":"content_block_start:1"},' + REPLY), "no event of its reply"),
        (line(rest='"fault":{"kind":"reset","after":"content_block_start:0"}'), "no event of its reply"),
        (line(rest='"hold":"content_block_stop:1",' + REPLY), "no event of its reply"),
    ],
)
def test_bad_lines_are_told_with_their_number(bad: str, why: str) -> None:
    with pytest.raises(BadReplay) as caught:
        script(line(), "", bad)
    assert caught.value.line == 4
    assert why in str(caught.value)


@given(st.text(max_size=60))
def test_rubbish_never_escapes_as_anything_else(text: str) -> None:
    for candidate in (text, HEADER + "\n" + text, HEADER + "\n" + line(path="s")[: len(text)]):
        try:
            parse_script(candidate, "f")
        except BadReplay as error:
            assert error.line >= 1


def test_stop_reason_is_the_usual_one_unless_given() -> None:
    call = '{"type":"tool_use","name":"Bash","input":{}}'
    parsed = script(
        block('{"type":"text","text":"x"}'),
        line(turn=2, rest=f'"reply":{{"content":[{call}]}}'),
        line(turn=3, rest='"reply":{"content":[],"stop_reason":null}'),
    )
    reasons = [parsed.line(CallId("s", 1, turn), 1).reply.stop_reason for turn in (1, 2, 3)]
    assert reasons == ["end_turn", "tool_use", None]


def test_lines_of_one_call_answer_successive_attempts_and_the_last_reply_goes_on() -> None:
    parsed = script(
        line(rest='"fault":{"kind":"reset","after":"content_block_start:0"},"repeat":2'),
        line(),
        line(rest='"fault":{"kind":529}'),
    )
    assert [parsed.line(S1, attempt).number for attempt in (1, 2, 3, 4, 5, 6)] == [2, 2, 3, 4, 3, 3]
    assert parsed.line(S1, 1).reply == parsed.line(S1, 3).reply


def test_a_missing_answer_is_told_with_path_run_and_turn() -> None:
    parsed = script(line(path="s/1.0", rest='"fault":{"kind":"500"}'))
    with pytest.raises(ReplayFailed, match=r"^replay has no answer for s/1\.0 run 2 turn 1$"):
        parsed.line(CallId("s/1.0", 2, 1), 1)
    with pytest.raises(ReplayFailed, match=r"no answer for s/1\.0 run 1 turn 1, attempt 2$"):
        parsed.line(CallId("s/1.0", 1, 1), 2)


def test_an_answer_follows_only_what_the_file_answers() -> None:
    second = line(turn=2, rest=REPLY + ',"follows":[["s",1,1]]')
    assert script(line(), second).lines[CallId("s", 1, 2)][0].entry.follows == (S1,)
    with pytest.raises(BadReplay, match=r"f\.jsonl, line 2: it follows s run 1 turn 1, which no line answers"):
        script(second)


def test_unused_lines_are_named() -> None:
    parsed = script(line(rest='"repeat":2,' + REPLY), line(), line(path="s/2:1.0", run=3, turn=2))
    assert parsed.unused({("s", 1, 1): 3, ("s/2:1.0", 3, 2): 1}) == []
    assert parsed.unused({("s", 1, 1): 2}) == [
        "line 3: s run 1 turn 1 was not asked for attempt 3",
        "line 4: s/2:1.0 run 3 turn 2 was not asked",
    ]


def test_tool_use_ids_differ_by_every_part_and_stay_the_same() -> None:
    keys = [
        (CallId(path, run, turn), block, attempt)
        for path in ("s", "s/1.0")
        for run in (1, 2)
        for turn in (1, 2)
        for block in (0, 1)
        for attempt in (1, 2)
    ]
    ids = [tool_use_id(*key) for key in keys]
    assert len(set(ids)) == len(ids)
    assert ids == [tool_use_id(*key) for key in keys]
    assert all(len(one) == len("toolu_") + 24 for one in ids)
