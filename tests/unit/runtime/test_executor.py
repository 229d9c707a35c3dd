"""The executor and what it leaves: discarded answers, aborts, denials, hand-overs. On a lease in memory."""

import asyncio
from contextlib import ExitStack

import pytest

from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Line, text_block
from celeriac.common.contract.task import Record, State
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.llm.client import BadRequest, BrokenStream, Overloaded
from celeriac.common.runtime.executor import INTERRUPTED, SECOND_OUTPUT
from celeriac.common.runtime.holdings import Holdings
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.runs import Probe, Stage, Words
from celeriac.common.testing.scripted import Scripted, says, tool_use
from celeriac.common.testing.substrate_kit import Kit
from celeriac.common.testing.waiting import until
from celeriac.common.tools.base import ToolContext, ToolResult
from celeriac.common.tools.invoke import MAX_REASON
from celeriac.workers.workspace import FileStamp

RESET = BrokenStream("message_start", "reset")


def results(line: Line) -> dict[str, str]:
    return {str(b["tool_use_id"]): str(b["content"]) for b in line.content if b["type"] == "tool_result"}


async def begun(stage: Stage, *answers: Scripted) -> tuple[Record, Lease, "asyncio.Future[object]"]:
    record = await stage.create()
    lease = await stage.claim(record)
    return record, lease, asyncio.ensure_future(stage.play(record, lease, answers))


async def again(stage: Stage, record: Record, *answers: Scripted) -> tuple[Record, tuple[Line, ...]]:
    now = await stage.substrate.records.get(record.task_id)
    await stage.play(now, await stage.claim(now), answers)
    return (
        await stage.substrate.records.get(record.task_id),
        await stage.substrate.transcripts.lines(record.task_id),
    )


async def test_a_second_break_after_an_effect_does_not_fail_for_the_first(stage: Stage, bash: Probe) -> None:
    gate = asyncio.Event()
    async with asyncio.timeout(10):
        call = [tool_use("t1", "Bash", text="a")]
        answers = (Scripted([], failure=RESET), Scripted(call, failure=RESET, gate=gate), says("done"))
        record, _, running = await begun(stage, *answers)
        await bash.begun.wait()
        gate.set()
        await running
    ended = await stage.substrate.records.get(record.task_id)
    assert ended.outcome is not None and (ended.state, ended.outcome.text) == (State.COMPLETED, "done")
    assert bash.calls == ["a"]


async def test_any_failure_after_an_effect_leaves_the_answer_standing(stage: Stage, bash: Probe) -> None:
    gate = asyncio.Event()
    async with asyncio.timeout(10):
        overloaded = Scripted([tool_use("t1", "Bash", text="a")], failure=Overloaded("busy"), gate=gate)
        record, _, running = await begun(stage, overloaded, says("done"))
        await bash.begun.wait()
        gate.set()
        await running
    assert (await stage.substrate.records.get(record.task_id)).state is State.COMPLETED


async def test_denials_of_a_discarded_answer_are_forgotten(stage: Stage) -> None:
    odd = [tool_use("t1", "AgentTool", prompt="x"), text_block("half")]
    record, _, _ = await stage.whole(Scripted(odd, failure=RESET), says("done"))
    assert record.outcome is not None and record.outcome.denials == ()


async def test_denials_and_usage_survive_a_takeover(stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    async with asyncio.timeout(10):
        odd, call = [tool_use("t1", "AgentTool", prompt="x")], [tool_use("t2", "Bash", text="a")]
        record, lease, running = await begun(stage, Scripted(odd), Scripted(call))
        await bash.begun.wait()
        lease.node.abort(AbortReason.SHUTDOWN)
        await running
    ended, _ = await again(stage, record, says("done"))
    assert ended.outcome is not None
    assert [denial.tool_use_id for denial in ended.outcome.denials] == ["t1"]
    assert (ended.outcome.usage.turns, ended.outcome.usage.total_tokens) == (3, 45)


async def test_a_defect_keeps_what_the_run_used(stage: Stage, bash: Probe) -> None:
    record, _, _ = await stage.whole(Scripted([text_block("so far"), tool_use("t1", "Bash", text="a")]))
    assert record.outcome is not None and record.outcome.reason.startswith("internal error")
    assert (record.outcome.usage.total_tokens, record.outcome.text) == (15, "so far")


async def test_a_closing_process_leaves_a_call_that_waits_to_the_next_owner(stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    calls = [tool_use("t1", "Bash", text="a"), tool_use("t2", "Bash", text="b")]
    async with asyncio.timeout(10):
        record, lease, running = await begun(stage, Scripted(calls))
        await bash.begun.wait()
        lease.node.abort(AbortReason.SHUTDOWN)
        await running
    assert len(await stage.substrate.transcripts.lines(record.task_id)) == 1
    bash.gate = None
    ended, lines = await again(stage, record, says("done"))
    assert results(lines[2]) == {"t1": "stopped", "t2": "did b"} and bash.calls == ["a", "b"]
    assert ended.outcome is not None and ended.outcome.usage.turns == 2


async def test_a_closing_process_leaves_the_final_output_to_the_next_owner(stage: Stage, read: Probe) -> None:
    read.gate = asyncio.Event()
    calls = [tool_use("t1", "Read", text="a"), tool_use("t2", "SyntheticOutput", result="the end")]
    async with asyncio.timeout(10):
        record, lease, running = await begun(stage, Scripted(calls))
        await read.begun.wait()
        lease.node.abort(AbortReason.SHUTDOWN)
        await running
    read.gate = None
    ended, lines = await again(stage, record)
    assert ended.outcome is not None and ended.outcome.text == "the end"
    assert results(lines[-1]) == {"t1": "did a", "t2": "delivered"}
    assert [line.role for line in lines] == ["user", "assistant", "user"]


async def test_a_stop_before_the_hand_over_ends_the_run(stage: Stage, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    async with asyncio.timeout(10):
        calls = [tool_use("t1", "Bash", text="a"), tool_use("t2", "Bash", text="b")]
        record, lease, running = await begun(stage, Scripted(calls))
        await bash.begun.wait()
        await stage.substrate.records.request_stop(record.task_id, kind="user", reason="enough", op="s")
        lease.node.abort(AbortReason.SHUTDOWN)
        await running
    ended = await stage.substrate.records.get(record.task_id)
    assert ended.outcome is not None and (ended.state, ended.outcome.reason) == (State.STOPPED, "enough")
    lines = await stage.substrate.transcripts.lines(record.task_id)
    assert results(lines[-1]) == {"t1": "stopped", "t2": INTERRUPTED}


async def test_a_waiting_session_is_handed_over_at_once(stage: Stage) -> None:
    stage.kind = Kind.SESSION
    record = await stage.create()
    lease = await stage.claim(record)
    holdings = Holdings()
    await Kit(stage.substrate, None, None).agent(lease)  # type: ignore[arg-type]  # nothing of it looks inside
    with holdings.hold(lease):
        async with asyncio.timeout(2):  # much less than a third of the lease
            running = asyncio.ensure_future(stage.play(record, lease, [says("I wait")]))
            await until(lambda: lease.tlen == 2)
            holdings.shut_down()
            await running
    now = await stage.substrate.records.get(record.task_id)
    assert (now.state, now.lease) == (State.QUEUED, None)


async def test_a_stopped_run_asks_no_model(stage: Stage, substrate: Substrate, bash: Probe) -> None:
    bash.gate = asyncio.Event()
    async with asyncio.timeout(10):
        record, _, running = await begun(stage, Scripted([tool_use("t1", "Bash", text="a")]))
        await bash.begun.wait()
        await substrate.records.request_stop(record.task_id, kind="user", reason="enough", op="s")
        bash.gate.set()  # the call ends well; the stop is heard with the append of its result
        await running
    assert (await substrate.records.get(record.task_id)).state is State.STOPPED


async def test_only_the_first_final_output_counts(stage: Stage) -> None:
    calls = [tool_use("t1", "SyntheticOutput", result="one"), tool_use("t2", "SyntheticOutput", result="two")]
    record, lines, _ = await stage.whole(Scripted(calls))
    assert record.outcome is not None and record.outcome.text == "one"
    assert results(lines[-1]) == {"t1": "delivered", "t2": SECOND_OUTPUT}


async def test_a_server_that_is_away_inside_a_call_is_no_result(stage: Stage, substrate: Substrate) -> None:
    class Away(Probe):
        async def run(self, i: Words, ctx: ToolContext) -> ToolResult:
            raise ServerUnreachable("nobody answers")

    stage.tools = [Away("Bash", changes=True)]
    async with asyncio.timeout(10):
        record, _, running = await begun(stage, Scripted([tool_use("t1", "Bash", text="a")]))
        await running
    assert not (await substrate.records.get(record.task_id)).state.terminal  # the next owner asks again
    assert len(await substrate.transcripts.lines(record.task_id)) == 1


async def test_a_tool_that_cannot_judge_a_call_fails_that_call_only(stage: Stage) -> None:
    class Odd(Probe):
        def read_only(self, i: Words) -> bool:
            raise RecursionError("too deep")

    stage.tools = [Odd("Bash", changes=True)]
    record, lines, _ = await stage.whole(Scripted([tool_use("t1", "Bash", text="a")]), says("done"))
    assert record.state is State.COMPLETED and "RecursionError" in results(lines[2])["t1"]


@pytest.mark.parametrize("blocks", [[], [{"type": "thinking", "thinking": "hm", "signature": "s"}]])
async def test_an_empty_answer_is_not_stored(stage: Stage, substrate: Substrate, blocks: list[JsonObject]) -> None:
    record, lines, _ = await stage.whole(Scripted([tool_use("t1", "Read", text="a"), *blocks]), Scripted(blocks))
    assert record.state is State.COMPLETED
    assert [block["type"] for line in lines for block in line.content] == ["text", "tool_use", "tool_result"]


async def test_a_blank_message_is_consumed_and_seen(stage: Stage, substrate: Substrate) -> None:
    record, _, _ = await stage.whole(says("first"))
    await substrate.inboxes.send_message(record.task_id, "1", " \n", op="send", sender=None)
    ended, lines = await again(stage, record, says("second"))
    assert ended.outcome is not None and ended.outcome.text == "second" and ended.unread == 0
    assert lines[2].content == (text_block("(an empty message)"),)


async def test_a_refused_answer_fails_and_is_dropped(stage: Stage) -> None:
    record, lines, _ = await stage.whole(Scripted([text_block("half")], stop_reason="refusal"))
    assert record.state is State.FAILED and record.outcome is not None
    assert record.outcome.reason.startswith("refusal: the model declined") and record.outcome.partial
    assert [line.role for line in lines] == ["user"]


async def test_a_file_whose_name_is_no_text_harms_nothing(stage: Stage) -> None:
    class Reads(Probe):
        async def run(self, i: Words, ctx: ToolContext) -> ToolResult:
            return ToolResult("a\udcff", meta=FileStamp(path="a\udcff", size=1, sha256="0"))

    stage.tools = [Reads("Read", changes=False)]
    record, lines, _ = await stage.whole(Scripted([tool_use("t1", "Read", text="a")]), says("done"))
    assert record.state is State.COMPLETED
    assert lines[2].metas[0].data["path"] == "a\ufffd" and results(lines[2]) == {"t1": "a\ufffd"}


async def test_what_streamed_is_sent_before_a_run_parks(stage: Stage, substrate: Substrate) -> None:
    stage.kind = Kind.SESSION
    question = [text_block("let me ask"), tool_use("t1", "SyntheticOutput", result="which?", kind="question")]
    record, _, _ = await stage.whole(Scripted(question))
    assert record.park is not None and await substrate.events.output(record.task_id) == "let me ask"


async def test_a_lease_that_was_lost_does_not_take_the_next_one_along(stage: Stage) -> None:
    record, holdings = await stage.create(), Holdings()
    old = await stage.claim(record)
    await old.release()
    new = await stage.claim(record)
    with ExitStack() as late, holdings.hold(old):
        late.enter_context(holdings.hold(new))
        with holdings.hold(new):
            pass
    assert len(holdings) == 0
    with holdings.hold(new):
        with holdings.hold(new):
            pass
        assert record.task_id in holdings
        holdings.shut_down()
    assert new.node.reason is AbortReason.SHUTDOWN and old.node.reason is None


async def test_a_reason_is_bounded(stage: Stage) -> None:
    record, _, _ = await stage.whole(Scripted([], failure=BadRequest("no\udcff " * 10_000)))
    assert record.outcome is not None and record.outcome.reason.startswith("bad_request: no\ufffd no")
    assert len(record.outcome.reason.encode()) <= MAX_REASON


async def test_a_number_of_any_size_harms_nothing(stage: Stage) -> None:
    call: JsonObject = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"text": "a", "n": 10**30}}
    record, lines, _ = await stage.whole(Scripted([call]), says("done"))
    assert record.state is State.COMPLETED and "n: " in results(lines[2])["t1"]
