"""Answers from a file: task references, expectations, fingerprints, attempts."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm import ordering
from celeriac.common.llm.client import ApiMessage, BlockDone, CallKey, ModelEvent, ReplayFailed, Request
from celeriac.common.llm.fingerprint import fingerprint, mask_text
from celeriac.common.llm.replay import MemoryLedger, ReplayModel, parse_script
from celeriac.common.llm.script import CallId, tool_use_id
from celeriac.common.testing.waiting import until

SESSION = TaskId("s-0123456789abc")


def lines(*entries: JsonObject) -> str:
    return "\n".join(json.dumps(entry) for entry in ({"v": 1}, *entries))


def entry(path: str, run: int, turn: int, *content: JsonObject, **more: object) -> JsonObject:
    return {"path": path, "run": run, "turn": turn, "reply": {"content": list(content)}, **more}  # type: ignore[dict-item]  # any JSON


def agent(kind: str | None = None) -> JsonObject:
    return {"type": "tool_use", "name": "AgentTool", "input": {} if kind is None else {"kind": kind}}


def text(value: str) -> JsonObject:
    return {"type": "text", "text": value}


class Job:
    """One session that is replayed."""

    def __init__(self, *entries: JsonObject) -> None:
        self.ledger = MemoryLedger()
        self.script = parse_script(lines(*entries), "f")
        self.model = ReplayModel(self.script, self.ledger)

    async def ask(
        self, path: str, run: int, turn: int, messages: Sequence[ApiMessage] | None = None
    ) -> list[ModelEvent]:
        sent = tuple(messages or [ApiMessage.of("user", (text("go"),))])
        request = Request(CallKey(SESSION, path, run, turn), "m", 100, (), b"[]", sent)
        async with aclosing(self.model.stream(request, AbortNode())) as stream:
            return [event async for event in stream]

    async def blocks(self, path: str, run: int, turn: int) -> list[JsonObject]:
        return [event.block for event in await self.ask(path, run, turn) if isinstance(event, BlockDone)]


def user(value: str) -> ApiMessage:
    return ApiMessage.of("user", (text(value),))


async def test_task_references_stand_for_the_ids_that_the_served_blocks_dispatched() -> None:
    job = Job(
        entry("s", 1, 1, text("two of them"), agent("sh"), agent()),
        entry("s/1.2", 1, 1, agent("a")),
        entry("s", 2, 1, agent()),
        entry(
            "s",
            2,
            2,
            {"type": "tool_use", "name": "SendMessage", "input": {"to": ["{{task:s/1.1}}"], "message": "x"}},
            text("{{task:s/1.2}} and {{task:s/1.2/1.0}} and {{task:s/2:1.0}} of {{task:s}}"),
        ),
    )
    for path, run, turn in [("s", 1, 1), ("s/1.2", 1, 1), ("s", 2, 1)]:
        await job.ask(path, run, turn)
    sent, told = await job.blocks("s", 2, 2)
    shell = ids.child(SESSION, Kind.SHELL, tool_use_id(CallId("s", 1, 1), 1, 1))
    first = ids.child(SESSION, Kind.AGENT, tool_use_id(CallId("s", 1, 1), 2, 1))
    inner = ids.child(first, Kind.AGENT, tool_use_id(CallId("s/1.2", 1, 1), 0, 1))
    later = ids.child(SESSION, Kind.AGENT, tool_use_id(CallId("s", 2, 1), 0, 1))
    assert sent["input"] == {"to": [shell], "message": "x"}
    assert told["text"] == f"{first} and {inner} and {later} of {SESSION}"


async def test_a_task_reference_means_the_attempt_that_was_served_last() -> None:
    job = Job(entry("s", 1, 1, agent(), repeat=2), entry("s", 1, 2, text("{{task:s/1.0}}")))
    await job.ask("s", 1, 1)
    await job.ask("s", 1, 1)
    (told,) = await job.blocks("s", 1, 2)
    assert told["text"] == ids.child(SESSION, Kind.AGENT, tool_use_id(CallId("s", 1, 1), 0, 2))


async def test_an_answer_that_follows_a_call_comes_after_it_however_early_it_is_asked() -> None:
    first, later = entry("s/1.0", 1, 1, text("first")), entry("s/1.1", 1, 1, text("later"), follows=[["s/1.0", 1, 1]])
    job = Job(first, later)
    waiting = asyncio.create_task(job.blocks("s/1.1", 1, 1))

    async def asked() -> bool:
        return ("s/1.1", 1, 1) in await job.ledger.attempts()

    await until(asked, what="the early call")
    assert not waiting.done()
    await job.ask("s/1.0", 1, 1)
    async with asyncio.timeout(5):
        assert (await waiting)[0]["text"] == "later"


async def test_an_answer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "WAIT_SECONDS", 0.01)
    job = Job(entry("s", 1, 1, text("never asked")), entry("s", 1, 2, text("x"), follows=[["s", 1, 1]]))
    with pytest.raises(ReplayFailed, match=r"replay waited 0 s at s run 1 turn 2 for s run 1 turn 1"):
        await job.ask("s", 1, 2)


@pytest.mark.parametrize("path", ["s/1.0", "s/1.1", "s/1.7", "s/5.0", "s/1.2"])
async def test_an_unknown_task_reference_fails_the_replay(path: str) -> None:
    job = Job(
        entry("s", 1, 1, text("no call"), agent("nonsense"), {"type": "thinking", "thinking": "x"}),
        entry("s", 1, 2, text(f"{{{{task:{path}}}}}")),
    )
    await job.ask("s", 1, 1)
    with pytest.raises(ReplayFailed, match=path):
        await job.ask("s", 1, 2)


async def test_tool_use_ids_come_from_the_attempt_and_never_from_the_file() -> None:
    job = Job(entry("s", 1, 1, {**agent(), "id": "toolu_recorded"}))
    found = [(await job.blocks("s", 1, 1))[0]["id"] for _ in range(2)]
    assert found == [tool_use_id(CallId("s", 1, 1), 0, attempt) for attempt in (1, 2)]


async def test_expectations_are_searched_in_all_text_of_the_last_user_message() -> None:
    job = Job(entry("s", 1, 1, text("ok"), expect=["first.*", "in[n]er", "^last$"][:2]))
    result: JsonObject = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("the inner one")]}
    plain: JsonObject = {"type": "tool_result", "tool_use_id": "toolu_2", "content": "plain"}
    message = ApiMessage.of("user", (result, plain, text("first of all")))
    await job.ask("s", 1, 1, [message])
    with pytest.raises(ReplayFailed, match=r"^replay diverged at s run 1 turn 1: expected /first\.\*/"):
        await job.ask("s", 1, 1, [message, ApiMessage.of("assistant", (text("first inner"),)), user("other")])


async def test_a_fingerprint_that_differs_fails_the_replay() -> None:
    messages = [user("do it in /tmp/a")]
    fp = fingerprint([{"role": "user", "content": [text("do it in /home/b/c")]}])
    job = Job(entry("s", 1, 1, text("ok"), fp=fp))
    await job.ask("s", 1, 1, messages)
    with pytest.raises(ReplayFailed, match="diverged at s run 1 turn 1"):
        await job.ask("s", 1, 1, [user("do something else")])


async def test_a_missing_line_fails_and_unused_ones_are_reported() -> None:
    job = Job(entry("s", 1, 1, text("ok")), entry("s/1.0", 2, 3, text("never")))
    await job.ask("s", 1, 1)
    with pytest.raises(ReplayFailed, match=r"replay has no answer for s run 1 turn 2"):
        await job.ask("s", 1, 2)
    assert job.script.unused(await job.ledger.attempts()) == ["line 3: s/1.0 run 2 turn 3 was not asked"]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("task s-0123456789abc ended", "task s-zzzzzzzzzzzzz ended"),
        ("see a-0123456789abc0123456789abc", "see a-0123456789abcabcdefghijklm"),
        ("took 12 ms", "took 3.5s"),
        ("at 2026-01-02T03:04:05Z", "at 2025-11-12 13:14:15.123+01:00"),
        ("clock 10:11:12", "clock 1:02:03.5"),
        ("stamp 1767225600000", "stamp 1700000000"),
        ("open /a/b.py now", "open /work/x/y.py now"),
        ("<usage><total_tokens>5</total_tokens></usage>", "<usage><total_tokens>99</total_tokens></usage>"),
        ("used 1,234 tokens", "used 9 tokens"),
        ("call toolu_0a", "call toolu_1b"),
    ],
)
def test_what_differs_from_run_to_run_is_masked(left: str, right: str) -> None:
    assert mask_text(left) == mask_text(right) != left


@pytest.mark.parametrize("value", ["src/app.py", "https://example.org/a/b", "3 files", "a/b", "1 / 2", "line 12"])
def test_what_tells_jobs_apart_is_not_masked(value: str) -> None:
    assert mask_text(value) == value


def test_cache_marks_and_ids_do_not_change_a_fingerprint_and_names_do() -> None:
    def call(name: str, id_: str, **more: JsonObject) -> JsonObject:
        return {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": name, "input": {}, **more}]}

    marked = call("Bash", "toolu_2", cache_control={"type": "ephemeral"})
    assert fingerprint([call("Bash", "x1")]) == fingerprint([marked])
    assert fingerprint([call("Bash", "x1")]) != fingerprint([call("Read", "x1")])
