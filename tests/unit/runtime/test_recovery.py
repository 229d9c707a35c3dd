"""What a turn does about a model call that failed or was cut (SPEC 5, Recovery)."""

import asyncio

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import text_block
from celeriac.common.contract.models import NamedModel
from celeriac.common.contract.task import Record, State, Usage
from celeriac.common.llm.client import (
    BadRequest,
    BrokenStream,
    ModelFailure,
    NoSuchModel,
    Overfull,
    Overloaded,
    Passing,
    RateLimited,
    Request,
    ServerFailed,
    TooLarge,
    TooLong,
    Unreachable,
)
from celeriac.common.llm.retry import delay
from celeriac.common.runtime.closing import CONTINUATIONS, CONTINUE_TEXT, NOTHING_WHOLE_TEXT
from celeriac.common.runtime.deps import NullCompactor
from celeriac.common.runtime.fallback import Switch
from celeriac.common.runtime.state import LoopState
from celeriac.common.settings import RetrySettings
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import ClaimRefusal
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, tool_use
from celeriac.common.testing.waiting import until

FIRST = NamedModel(name="scripted", window=200_000, max_output=128_000)
OTHER = NamedModel(name="other", window=50_000, max_output=4_000)


def says(text: str = "done") -> Scripted:
    return Scripted([text_block(text)])


def fails(failure: ModelFailure) -> Scripted:
    return Scripted([], failure=failure)


def cut(*blocks: JsonObject) -> Scripted:
    return Scripted(blocks, stop_reason="max_tokens")


# ── waits ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("failed", "least"), [(1, 0.5), (2, 1), (3, 2), (6, 16), (7, 32), (8, 32), (500, 32)])
def test_waits_double_up_to_their_maximum_with_a_quarter_on_top(failed: int, least: float) -> None:
    waits = [delay(RetrySettings(), failed, None) for _ in range(200)]
    assert least <= min(waits) and max(waits) <= least * 1.25 and len(set(waits)) > 1


def test_what_the_server_says_wins() -> None:
    assert 7 <= delay(RetrySettings(), 9, 7.0) <= 7 * 1.25
    assert delay(RetrySettings(), 9, 0.0) == 0


@pytest.mark.parametrize(
    "failure",
    [RateLimited("429"), Overloaded("529"), ServerFailed("500"), Unreachable("no"), BrokenStream("message_start", "x")],
)
async def test_a_passing_failure_is_asked_again_ten_times_in_all(stage: Stage, failure: Passing) -> None:
    record, _, model = await stage.whole(fails(failure), fails(failure), says())
    assert record.state is State.COMPLETED and len(model.requests) == 3
    assert [request.key.attempt for request in model.requests] == [1, 2, 3]
    record, lines, model = await stage.whole(*[fails(failure)] * 10)
    assert record.state is State.FAILED and len(model.requests) == 10 and len(lines) == 1
    assert record.outcome is not None and record.outcome.reason.startswith(failure.reason)


async def test_each_call_has_its_own_ten(stage: Stage) -> None:
    nine = [fails(ServerFailed("500"))] * 9
    record, _, model = await stage.whole(*nine, Scripted([tool_use("t1", "Read")]), *nine, says())
    assert record.state is State.COMPLETED and len(model.requests) == 20


@pytest.mark.parametrize("failure", [BadRequest("no"), NoSuchModel("nobody")])
async def test_a_refusal_is_not_asked_again(stage: Stage, failure: ModelFailure) -> None:
    record, _, model = await stage.whole(fails(failure))
    assert record.state is State.FAILED and len(model.requests) == 1


async def test_a_long_wait_frees_the_slot_and_keeps_count(stage: Stage) -> None:
    stage.retry = RetrySettings(attempts=3, park_after_seconds=0.05)
    busy = fails(RateLimited("429", retry_after=0.1))
    record = await stage.create()
    for tries in (1, 2):
        await stage.play(record, await due(stage, record), [busy])
        record = await stage.substrate.records.get(record.task_id)
        assert record.state is State.QUEUED and record.park is not None and record.park.why == "retry"
        assert (record.tries, record.attempt) == (tries, 0)
    await stage.play(record, await due(stage, record), [busy])
    record = await stage.substrate.records.get(record.task_id)
    assert record.state is State.FAILED and record.outcome is not None and "rate_limited" in record.outcome.reason


async def test_an_answer_ends_the_count(stage: Stage) -> None:
    stage.retry = RetrySettings(attempts=3, park_after_seconds=0.05)
    busy = fails(RateLimited("429", retry_after=0.1))
    record = await stage.create()
    await stage.play(record, await due(stage, record), [busy])
    record = await stage.substrate.records.get(record.task_id)
    await stage.play(record, await due(stage, record), [Scripted([tool_use("t1", "Read")]), busy])
    assert (await stage.substrate.records.get(record.task_id)).tries == 1


async def due(stage: Stage, record: Record) -> Lease:
    """The lease, as soon as the park is over."""
    got: list[Lease] = []

    async def claimed() -> bool:
        lease = await stage.substrate.claim(record.task_id, None, process="test")
        if not isinstance(lease, ClaimRefusal):
            got.append(lease)
        return bool(got)

    await until(claimed, what="the end of the park")
    return got[0]


async def test_a_stop_ends_a_wait_at_once(stage: Stage) -> None:
    stage.retry = RetrySettings(base_seconds=30)
    record = await stage.create()
    lease = await stage.claim(record)

    async def stop() -> None:
        await until(lambda: stage.tally.tries == 1, what="the wait")
        await stage.substrate.records.request_stop(record.task_id, kind="user", reason="enough", op="s")

    async with asyncio.timeout(20):
        await asyncio.gather(stage.play(record, lease, [fails(ServerFailed("500"))]), stop())
    assert (await stage.substrate.records.get(record.task_id)).state is State.STOPPED


# ── another model ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_third_overload_in_a_row_changes_the_model(stage: Stage) -> None:
    stage.model, stage.fallback = FIRST, OTHER
    thinking: JsonObject = {"type": "thinking", "thinking": "hm", "signature": "s"}
    called = Scripted([thinking, tool_use("t1", "Read")])
    busy = fails(Overloaded("529"))
    record, _, model = await stage.whole(called, busy, busy, busy, says())
    assert record.state is State.COMPLETED
    assert [request.model for request in model.requests] == ["scripted"] * 4 + ["other"]
    assert "thinking" in str(model.requests[3].messages) and "thinking" not in str(model.requests[4].messages)
    assert model.requests[4].max_tokens == OTHER.max_output


async def test_overloads_that_are_not_in_a_row_change_nothing(stage: Stage) -> None:
    stage.fallback = OTHER
    busy = fails(Overloaded("529"))
    _, _, model = await stage.whole(busy, busy, fails(ServerFailed("500")), busy, busy, says())
    assert {request.model for request in model.requests} == {"scripted"}


def test_the_first_model_comes_back_after_the_cooldown() -> None:
    now = [0.0]
    switch = Switch(FIRST, OTHER, 300, clock=lambda: now[0])
    assert [switch.failed(Overloaded("529")) for _ in range(3)] == [False, False, True]
    now[0] = 299.9
    assert switch.current == OTHER
    now[0] = 300.0
    assert switch.current == FIRST
    assert [switch.failed(Overloaded("529")) for _ in range(3)] == [False, False, True]


def test_a_fallback_that_is_the_model_itself_is_none() -> None:
    switch = Switch(FIRST, FIRST)
    assert not any(switch.failed(Overloaded("529")) for _ in range(9))


# ── the room for an answer ───────────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_that_was_cut_is_asked_again_with_more_room(stage: Stage) -> None:
    stage.model = FIRST
    record, lines, model = await stage.whole(cut(text_block("half")), Scripted([tool_use("t1", "Read")]), says())
    assert record.state is State.COMPLETED
    assert [request.max_tokens for request in model.requests] == [8_000, 64_000, 8_000]
    assert "half" not in str(lines)


@pytest.mark.parametrize(("window", "max_output", "raised"), [(20_000, 64_000, 18_990), (200_000, 32_000, 32_000)])
async def test_more_room_is_bounded_by_the_model_and_the_window(
    stage: Stage, window: int, max_output: int, raised: int
) -> None:
    stage.model = NamedModel(name="scripted", window=window, max_output=max_output)
    _, _, model = await stage.whole(Scripted([tool_use("t1", "Read")]), cut(text_block("half")), says())
    assert model.requests[-1].max_tokens == raised


async def test_after_that_it_is_continued_three_times(stage: Stage) -> None:
    pieces = [cut(text_block(f"piece {number}")) for number in range(CONTINUATIONS + 1)]
    record, lines, model = await stage.whole(cut(text_block("lost")), *pieces[:-1], says("end"))
    assert record.state is State.COMPLETED
    assert [request.max_tokens for request in model.requests] == [8_000] + [64_000] * 4
    assert [line.content[-1].get("text") for line in lines if line.role == "user"][1:] == [CONTINUE_TEXT] * 3
    record, _, _ = await stage.whole(cut(text_block("lost")), *pieces)
    assert record.state is State.FAILED and record.outcome is not None
    assert record.outcome.reason.startswith("max_tokens") and record.outcome.text == "piece 3"


async def test_the_count_begins_again_after_a_whole_answer(stage: Stage) -> None:
    round_ = [cut(text_block("lost")), *[cut(text_block("piece"))] * 3, Scripted([tool_use("t1", "Read")])]
    record, _, _ = await stage.whole(*round_, *round_, says())
    assert record.state is State.COMPLETED


async def test_a_cut_answer_without_a_whole_block_is_told_so(stage: Stage) -> None:
    record, lines, _ = await stage.whole(cut(), cut(), says())
    assert record.state is State.COMPLETED
    assert [line.role for line in lines] == ["user", "user", "assistant"]
    assert lines[1].content[-1].get("text") == NOTHING_WHOLE_TEXT


async def test_the_calls_of_a_cut_answer_that_has_an_effect_are_kept(stage: Stage, bash: Probe) -> None:
    answer = Scripted([tool_use("t1", "Bash", text="once")], stop_reason="max_tokens", gate=bash.begun)
    record, lines, model = await stage.whole(answer, says())
    assert bash.calls == ["once"]
    assert record.state is State.COMPLETED and len(model.requests) == 2
    assert [block.get("type") for block in lines[2].content] == ["tool_result", "text"]


async def test_an_answer_for_which_no_room_is_left_gets_what_is_left(stage: Stage) -> None:
    record, _, model = await stage.whole(fails(Overfull(190_000, 20_000, 200_000)), says())
    assert record.state is State.COMPLETED and model.requests[-1].max_tokens == 9_000
    record, _, model = await stage.whole(fails(Overfull(197_000, 8_000, 200_000)))
    assert record.state is State.FAILED and len(model.requests) == 1


@pytest.mark.parametrize("failure", [TooLarge("413"), Overfull(197_000, 8_000, 200_000)])
async def test_what_is_too_long_is_made_smaller_once(stage: Stage, failure: ModelFailure) -> None:
    class Shrinks(NullCompactor):
        async def on_too_long(self, state: LoopState, failure: TooLong | TooLarge) -> LoopState:
            return state

    stage.compactor = Shrinks()
    assert (await stage.whole(fails(failure), says()))[0].state is State.COMPLETED
    assert (await stage.whole(fails(failure), fails(failure)))[0].state is State.FAILED


# ── other ends ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_paused_answer_is_sent_back_as_it_is(stage: Stage) -> None:
    search: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    paused = Scripted([text_block("I search"), search], stop_reason="pause_turn")
    record, lines, model = await stage.whole(paused, says("found"))
    assert record.state is State.COMPLETED and [line.role for line in lines] == ["user", "assistant", "assistant"]
    assert model.requests[1].messages[-1].content == (text_block("I search"), search)


@pytest.mark.parametrize("reason", ["model_context_window_exceeded", "brand_new"])
async def test_ends_that_are_no_answer_are_named(stage: Stage, reason: str) -> None:
    record, _, _ = await stage.whole(Scripted([text_block("half")], stop_reason=reason))
    assert record.state is State.FAILED and record.outcome is not None
    assert record.outcome.reason.startswith(reason) and record.outcome.text == "half"


async def test_a_stop_sequence_is_an_end(stage: Stage) -> None:
    record, _, _ = await stage.whole(Scripted([text_block("all")], stop_reason="stop_sequence"))
    assert record.state is State.COMPLETED


class Books:
    """A budget that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Usage | None] = []
        self.open = 0

    async def reserve(self, request: Request) -> int:
        self.open += 1
        return request.max_tokens

    async def settle(self, request: Request, usage: Usage | None) -> None:
        self.open -= 1
        self.told.append(usage)


async def test_each_reserve_is_settled_once_by_what_is_known(stage: Stage) -> None:
    books = stage.budget = Books()
    await stage.whole(fails(RateLimited("429")), fails(BrokenStream("message_start", "reset")), says())
    assert books.open == 0 and books.told[:2] == [Usage(), None]
    assert books.told[2] is not None and books.told[2].output_tokens == 5
