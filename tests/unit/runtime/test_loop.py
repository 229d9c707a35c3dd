"""The loop's events, on a real lease of the in-memory server."""

import asyncio

from celeriac.common.contract.messages import Line, text_block
from celeriac.common.contract.task import Limits, State, Subtype
from celeriac.common.llm.client import BadRequest, BrokenStream
from celeriac.common.runtime.state import Step
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, says, tool_use
from celeriac.common.testing.waiting import until
from celeriac.workers.tools.todo_write import TodoWrite


def results(line: Line) -> list[tuple[str, str]]:
    return [(str(b["tool_use_id"]), str(b["content"])) for b in line.content if b["type"] == "tool_result"]


async def test_a_text_ends_the_run_with_it(stage: Stage) -> None:
    record, lines, _ = await stage.whole(says("hello"))
    assert record.state is State.COMPLETED
    assert record.outcome is not None and record.outcome.text == "hello"
    assert [line.role for line in lines] == ["user", "assistant"]
    assert record.outcome.usage.total_tokens == 15 and record.outcome.usage.turns == 1


async def test_one_turn_has_the_twelve_steps_in_order(stage: Stage) -> None:
    await stage.whole(Scripted([tool_use("t1", "Read", text="a")]), says("done"))
    assert stage.steps[:12] == list(Step)


async def test_results_come_in_call_order_and_in_one_append(stage: Stage) -> None:
    calls = [tool_use("t1", "Read", text="a"), tool_use("t2", "Bash", text="b"), tool_use("t3", "Read", text="c")]
    record, lines, _ = await stage.whole(Scripted(calls), says("done"))
    assert results(lines[2]) == [("t1", "did a"), ("t2", "did b"), ("t3", "did c")]
    assert record.usage.tool_uses == 3


async def test_a_state_changing_call_is_a_barrier(stage: Stage, bash: Probe, read: Probe) -> None:
    read.gate, bash.gate = asyncio.Event(), asyncio.Event()
    calls = [tool_use("t1", "Read", text="a"), tool_use("t2", "Bash", text="b"), tool_use("t3", "Read", text="c")]
    async with asyncio.timeout(10):
        running = asyncio.ensure_future(stage.whole(Scripted(calls), says("done")))
        await read.begun.wait()
        assert (read.calls, bash.calls) == (["a"], [])
        read.gate.set()
        await bash.begun.wait()
        assert read.calls == ["a"]
        bash.gate.set()
        await running
    assert read.calls == ["a", "c"]


async def test_a_call_starts_while_the_answer_still_streams(stage: Stage, bash: Probe) -> None:
    gate = asyncio.Event()
    async with asyncio.timeout(10):
        running = asyncio.ensure_future(
            stage.whole(Scripted([tool_use("t1", "Bash", text="a")], gate=gate), says("done"))
        )
        await bash.begun.wait()
        gate.set()
        record, _, _ = await running
    assert record.state is State.COMPLETED


async def test_a_broken_stream_without_an_effect_is_asked_again(stage: Stage) -> None:
    broken = Scripted([text_block("half")], failure=BrokenStream("message_start", "reset"))
    record, lines, model = await stage.whole(broken, says("whole"))
    assert record.outcome is not None and record.outcome.text == "whole"
    assert [line.role for line in lines] == ["user", "assistant"]
    assert [request.key.attempt for request in model.requests] == [1, 2]


async def test_a_model_is_asked_ten_times_and_no_more(stage: Stage) -> None:
    broken = [Scripted([], failure=BrokenStream("message_start", "reset")) for _ in range(10)]
    record, _, model = await stage.whole(*broken)
    assert len(model.requests) == 10
    assert record.outcome is not None
    assert record.outcome.subtype is Subtype.EXECUTION and "broken_stream" in record.outcome.reason


async def test_a_broken_stream_whose_call_has_started_is_the_answer(stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    gate = asyncio.Event()
    calls = [text_block("I begin"), tool_use("t1", "Bash", text="a")]
    async with asyncio.timeout(10):
        broken = Scripted(calls, failure=BrokenStream("content_block_stop", "reset"), gate=gate)
        running = asyncio.ensure_future(stage.whole(broken, says("done")))
        await bash.begun.wait()
        gate.set()
        bash.gate.set()
        record, lines, model = await running
    assert bash.calls == ["a"]
    assert len(model.requests) == 2 and record.state is State.COMPLETED
    assert results(lines[2]) == [("t1", "did a")]


async def test_another_failure_of_the_model_ends_the_run(stage: Stage) -> None:
    record, lines, _ = await stage.whole(Scripted([], failure=BadRequest("messages: wrong")))
    assert record.state is State.FAILED and record.outcome is not None
    assert record.outcome.reason == "bad_request: messages: wrong"
    assert len(lines) == 1


async def test_an_unknown_tool_is_an_error_result_and_a_denial(stage: Stage) -> None:
    record, lines, _ = await stage.whole(Scripted([tool_use("t1", "AgentTool", prompt="x")]), says("done"))
    assert "there is no tool AgentTool" in results(lines[2])[0][1]
    assert record.outcome is not None
    assert [denial.tool_name for denial in record.outcome.denials] == ["AgentTool"]


async def test_the_turn_limit_counts_tool_turns_and_lets_a_text_through(stage: Stage, bash: Probe) -> None:
    stage.limits = Limits(turns=1)
    record, _, _ = await stage.whole(Scripted([tool_use("t1", "Bash", text="a")]), says("done"))
    assert record.state is State.COMPLETED


async def test_a_tool_turn_over_the_limit_is_not_run(stage: Stage, bash: Probe) -> None:
    stage.limits = Limits(turns=1)
    record, lines, _ = await stage.whole(
        Scripted([tool_use("t1", "Bash", text="a")]), Scripted([text_block("more"), tool_use("t2", "Bash", text="b")])
    )
    assert bash.calls == ["a"]
    assert record.outcome is not None and record.outcome.subtype is Subtype.MAX_TURNS
    assert record.outcome.text == "more" and record.outcome.partial
    assert results(lines[-1])[0][0] == "t2"


async def test_a_stop_drains_the_calls_and_keeps_the_pairs(stage: Stage, substrate: Substrate, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    record = await stage.create()
    lease = await stage.claim(record)
    async with asyncio.timeout(10):
        running = asyncio.ensure_future(stage.play(record, lease, [Scripted([tool_use("t1", "Bash", text="a")])]))
        await bash.begun.wait()
        await substrate.records.request_stop(record.task_id, kind="user", reason="enough", op="stop-1")
        lease.poke()
        await running
    ended = await substrate.records.get(record.task_id)
    lines = await substrate.transcripts.lines(record.task_id)
    assert ended.state is State.STOPPED and ended.outcome is not None and ended.outcome.reason == "enough"
    assert results(lines[-1]) == [("t1", "stopped")]


async def test_synthetic_output_gives_the_result(stage: Stage) -> None:
    record, lines, _ = await stage.whole(Scripted([tool_use("t1", "SyntheticOutput", structured={"n": 1})]))
    assert record.outcome is not None
    assert record.outcome.structured == {"n": 1} and record.outcome.text == '{"n":1}'
    assert results(lines[-1]) == [("t1", "delivered")]


async def test_a_wrong_synthetic_output_is_told_and_the_run_goes_on(stage: Stage) -> None:
    record, lines, _ = await stage.whole(Scripted([tool_use("t1", "SyntheticOutput", reslt="x")]), says("done"))
    assert "SyntheticOutput" in results(lines[2])[0][1]
    assert record.state is State.COMPLETED


async def test_a_message_that_arrives_before_the_end_is_read_first(stage: Stage, substrate: Substrate) -> None:
    record = await stage.create()
    lease = await stage.claim(record)
    gate = asyncio.Event()
    async with asyncio.timeout(10):
        first = Scripted([text_block("I am done")], gate=gate)
        running = asyncio.ensure_future(stage.play(record, lease, [first, says("now I am")]))
        await until(lambda: lease.tlen == 1)
        await substrate.inboxes.send_message(record.task_id, "1", "one more thing", op="send-1", sender=None)
        gate.set()
        await running
    lines = await substrate.transcripts.lines(record.task_id)
    assert [line.role for line in lines] == ["user", "assistant", "user", "assistant"]
    assert lines[2].content[0]["text"] == "one more thing" and len(lines[2].inbox_ids) == 1


async def test_a_follow_up_opens_a_new_run_on_the_same_transcript(stage: Stage, substrate: Substrate) -> None:
    record, _, _ = await stage.whole(says("first"))
    await substrate.inboxes.send_message(record.task_id, "1", "and now?", op="send-1", sender=None)
    again = await substrate.records.get(record.task_id)
    model = await stage.play(again, await stage.claim(again), [says("second")])
    assert [message.role for message in model.requests[0].messages] == ["user", "assistant", "user"]
    assert model.requests[0].key.run == 2 and model.requests[0].key.turn == 1
    ended = await substrate.records.get(record.task_id)
    assert ended.run == 2 and ended.outcome is not None and ended.outcome.text == "second"


async def test_open_todos_are_reminded_of_after_three_turns_without_them(substrate: Substrate) -> None:
    stage = Stage(substrate, [Probe("Read", changes=False), TodoWrite()])
    todos = [{"content": "write the tests", "status": "in_progress"}]
    reads = [Scripted([tool_use(f"r{n}", "Read", text=str(n))]) for n in range(7)]
    _, lines, _ = await stage.whole(Scripted([tool_use("t", "TodoWrite", todos=todos)]), *reads, says("done"))
    reminded = [at for at, line in enumerate(lines) if "write the tests" in str(line.content) and line.role == "user"]
    assert reminded == [8, 14]  # after the third and the sixth read: lines alternate, and the list itself is line 1


async def test_an_answer_by_tool_passes_the_turn_limit_as_a_text_does(stage: Stage) -> None:
    stage.limits = Limits(turns=1)
    answer = Scripted([tool_use("t2", "SyntheticOutput", result="the answer")])
    record, _, _ = await stage.whole(Scripted([tool_use("t1", "Bash", text="a")]), answer)
    assert record.state is State.COMPLETED and record.outcome is not None and record.outcome.text == "the answer"


async def test_beside_another_call_it_does_not(stage: Stage, bash: Probe) -> None:
    stage.limits = Limits(turns=1)
    both = Scripted([tool_use("t2", "Bash", text="b"), tool_use("t3", "SyntheticOutput", result="the answer")])
    record, _, _ = await stage.whole(Scripted([tool_use("t1", "Bash", text="a")]), both)
    assert record.outcome is not None and record.outcome.subtype is Subtype.MAX_TURNS and bash.calls == ["a"]


async def test_a_refused_answer_at_the_limit_ends_the_run(stage: Stage) -> None:
    stage.limits = Limits(turns=1)
    wrong = [Scripted([tool_use(f"t{n}", "SyntheticOutput", reslt="x")]) for n in (1, 2)]
    record, lines, _ = await stage.whole(*wrong)
    assert record.outcome is not None and record.outcome.subtype is Subtype.MAX_TURNS
    assert "SyntheticOutput" in results(lines[-1])[0][1]
