"""A new owner finds what the former one left, and does nothing twice (PROTOCOL 4, repair). On a lease in memory."""

import asyncio

import pytest
from fakeredis import FakeAsyncRedis

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft, Line, text_block, tool_result_block
from celeriac.common.contract.task import Outcome, Record, State, Subtype
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.runtime.resume import EFFECT_UNKNOWN, RUN_ENDED
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.points import hold
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, says, tool_use
from celeriac.common.testing.substrate_kit import DONE, Kit, line
from celeriac.common.tools.base import Restart


@pytest.fixture
def stage(substrate: Substrate, bash: Probe) -> Stage:
    return Stage(substrate, [bash, Probe("Read", changes=False), Probe("Write", changes=True, restart=Restart.RERUN)])


async def left(stage: Stage, blocks: list[JsonObject], started: list[str], *, run: int = 1) -> tuple[Record, Lease]:
    """A session whose owner stored a draft and then handed it over (as a crash would, without the wait)."""
    record = await stage.create()
    lease = await stage.claim(record)
    await lease.append([line("do it")])
    await lease.draft(Draft(run=run, turn=1, blocks=tuple(blocks)), started)
    return record, lease


def results(of: Line) -> dict[str, str]:
    return {str(b["tool_use_id"]): str(b["content"]) for b in of.content if b["type"] == "tool_result"}


async def taken_over(stage: Stage, record: Record, *answers: Scripted) -> tuple[Record, tuple[Line, ...]]:
    now = await stage.substrate.records.get(record.task_id)
    await stage.play(now, await stage.claim(now), answers)
    return (
        await stage.substrate.records.get(record.task_id),
        await stage.substrate.transcripts.lines(record.task_id),
    )


async def test_a_started_call_is_told_to_be_unknown_and_one_that_never_started_runs(stage: Stage, bash: Probe) -> None:
    record, lease = await left(stage, [tool_use("t1", "Bash", text="a"), tool_use("t2", "Bash", text="b")], ["t1"])
    await lease.release()
    ended, lines = await taken_over(stage, record, says("done"))
    assert results(lines[2]) == {"t1": EFFECT_UNKNOWN, "t2": "did b"}
    assert bash.calls == ["b"] and ended.state is State.COMPLETED
    assert [at.role for at in lines] == ["user", "assistant", "user", "assistant"]


async def test_a_kept_result_is_used_and_a_repeatable_call_is_repeated(stage: Stage, bash: Probe) -> None:
    record, lease = await left(
        stage, [tool_use("t1", "Bash", text="a"), tool_use("t2", "Write", text="b")], ["t1", "t2"]
    )
    await lease.tool_done("t1", tool_result_block("t1", "kept"))
    await lease.release()
    _, lines = await taken_over(stage, record, says("done"))
    assert results(lines[2]) == {"t1": "kept", "t2": "did b"}
    assert bash.calls == []


async def test_a_draft_with_the_final_output_ends_the_run(stage: Stage) -> None:
    blocks = [tool_use("t1", "Write", text="a"), tool_use("t2", "SyntheticOutput", result="the end")]
    record, lease = await left(stage, blocks, ["t1"])
    await lease.release()
    ended, lines = await taken_over(stage, record)
    assert ended.outcome is not None and ended.outcome.text == "the end"
    assert results(lines[-1]) == {"t1": "did a", "t2": "delivered"}


async def test_a_draft_of_an_ended_run_is_answered_and_nothing_of_it_runs(stage: Stage, bash: Probe) -> None:
    record, lease = await left(stage, [tool_use("t1", "Bash", text="a"), tool_use("t2", "Bash", text="b")], ["t1"])
    await lease.finish(Outcome(state=State.FAILED, subtype=Subtype.EXECUTION, reason="model"))
    await stage.substrate.inboxes.send_message(record.task_id, "1", "go on", op="send", sender=None)
    ended, lines = await taken_over(stage, record, says("done"))
    assert bash.calls == []
    assert results(lines[2]) == {"t1": EFFECT_UNKNOWN, "t2": RUN_ENDED}
    assert lines[2].content[-1] == text_block("go on")  # in the same message, after the results (C02)
    assert (ended.run, ended.state) == (2, State.COMPLETED)


async def test_a_stopped_call_and_the_follow_up_are_one_legal_message(stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    record = await stage.create()
    lease = await stage.claim(record)
    async with asyncio.timeout(10):
        running = asyncio.ensure_future(stage.play(record, lease, [Scripted([tool_use("t1", "Bash", text="a")])]))
        await bash.begun.wait()
        await stage.substrate.records.request_stop(record.task_id, kind="user", reason="enough", op="stop")
        lease.poke()
        await running
    await stage.substrate.inboxes.send_message(record.task_id, "1", "go on", op="send", sender=None)
    now = await stage.substrate.records.get(record.task_id)
    model = await stage.play(now, await stage.claim(now), [says("done")])
    last = model.requests[0].messages[-1]
    assert [block["type"] for block in last.content] == ["tool_result", "text"]
    assert [message.role for message in model.requests[0].messages] == ["user", "assistant", "user"]


async def test_a_question_parks_and_stays_parked_after_a_takeover(stage: Stage) -> None:
    stage.kind = Kind.SESSION
    question = Scripted([tool_use("t1", "SyntheticOutput", result="which one?", kind="question")])
    record, lines, _ = await stage.whole(question)
    assert record.park is not None and (record.park.until, record.park.why, record.asked) == ("inbox", "human", True)
    assert "asked" in results(lines[-1])["t1"]
    await stage.substrate.inboxes.send_message(record.task_id, "1", "the second", op="send", sender=None)
    ended, lines = await taken_over(stage, record, says("then that"))
    assert ended.state is State.COMPLETED and ended.outcome is not None and ended.outcome.text == "then that"


async def test_an_asked_session_without_a_reply_asks_no_model(stage: Stage) -> None:
    record = await stage.create()
    lease = await stage.claim(record)
    await lease.append([line("do it"), line("which one?", role="assistant"), line("asked")], asked=True)
    await lease.release()
    again, _ = await taken_over(stage, record)
    assert again.park is not None and again.park.until == "inbox"


async def test_turns_go_on_counting_and_begin_anew_in_a_new_run(stage: Stage) -> None:
    record, lease = await left(stage, [tool_use("t1", "Write", text="a")], ["t1"])
    await lease.release()
    now = await stage.substrate.records.get(record.task_id)
    model = await stage.play(now, await stage.claim(now), [says("done")])
    assert [(request.key.run, request.key.turn) for request in model.requests] == [(1, 2)]
    await stage.substrate.inboxes.send_message(record.task_id, "1", "more", op="send", sender=None)
    now = await stage.substrate.records.get(record.task_id)
    model = await stage.play(now, await stage.claim(now), [says("done")])
    assert [(request.key.run, request.key.turn) for request in model.requests] == [(2, 1)]


async def test_a_closing_process_hands_the_run_over(stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    record = await stage.create()
    lease = await stage.claim(record)
    async with asyncio.timeout(10):
        running = asyncio.ensure_future(stage.play(record, lease, [Scripted([tool_use("t1", "Bash", text="a")])]))
        await bash.begun.wait()
        lease.node.abort(AbortReason.SHUTDOWN)
        await running
    now = await stage.substrate.records.get(record.task_id)
    assert (now.state, now.lease, now.attempt) == (State.QUEUED, None, 0)
    bash.gate = None
    ended, lines = await taken_over(stage, record, says("done"))
    assert ended.state is State.COMPLETED and results(lines[2]) == {"t1": "stopped"}


async def test_a_lost_lease_writes_nothing_more(stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    record = await stage.create()
    lease = await stage.claim(record)
    async with asyncio.timeout(10):
        running = asyncio.ensure_future(stage.play(record, lease, [Scripted([tool_use("t1", "Bash", text="a")])]))
        await bash.begun.wait()
        lease.node.abort(AbortReason.LEASE_LOST)
        await running
    assert (await stage.substrate.records.get(record.task_id)).state.terminal is False
    assert len(await stage.substrate.transcripts.lines(record.task_id)) == 1


async def test_a_defect_inside_a_run_becomes_its_reason(stage: Stage) -> None:
    record, _, _ = await stage.whole()  # the scripted model has no answer: an AssertionError inside the loop
    assert record.state is State.FAILED and record.outcome is not None
    assert record.outcome.reason.startswith("internal error: AssertionError")


async def test_a_notification_between_the_refused_end_and_the_append_is_not_waited_for(stage: Stage) -> None:
    stage.kind = Kind.SESSION
    kit = Kit(stage.substrate, FakeAsyncRedis(), Keys())
    record = await stage.create()
    lease = await stage.claim(record)
    child = await kit.claim(await kit.agent(lease), process="worker")
    async with asyncio.timeout(10):
        with hold("finish.after", record.task_id) as held:
            running = asyncio.ensure_future(stage.play(record, lease, [says("waiting"), says("it is done")]))
            await held.reached.wait()  # the end was refused: CHILDREN
            await child.finish(DONE)
            held.release()
            await lease.renew()
            await running
    ended = await stage.substrate.records.get(record.task_id)
    assert ended.outcome is not None and ended.outcome.text == "it is done"
