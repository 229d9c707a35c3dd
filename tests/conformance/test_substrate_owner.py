"""append, draft, tool_done, emit, finish: what an owner writes, once, whatever gets lost (PROTOCOL 3)."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.messages import Draft, text_block
from celeriac.common.contract.task import State, Subtype, Usage
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.substrate.types import FinishStatus, Mark, MarkState, ParkStatus
from celeriac.common.testing.points import fail, hold
from celeriac.common.testing.substrate_kit import BROKEN, DONE, Kit, call, line, result

LOST_REPLY = RedisConnectionError("the reply was lost")


async def test_lines_come_back_with_number_token_and_time(kit: Kit) -> None:
    lease = await kit.owned_session()
    ack = await lease.append([line('quote " ü \u2028'), line("two", role="assistant")])
    assert (ack.tlen, lease.tlen) == (2, 2)
    first, second = await kit.substrate.transcripts.lines(lease.task_id)
    assert (first.seq, second.seq, first.token, first.role, second.role) == (0, 1, lease.token, "user", "assistant")
    assert first.content == (text_block('quote " ü \u2028'),)
    assert first.time > 0
    assert await kit.substrate.transcripts.lines(lease.task_id, 1) == (second,)
    assert await kit.substrate.transcripts.lines(lease.task_id, 0, 1) == (first,)


async def test_many_lines_come_back_in_order(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.append([line(str(n)) for n in range(300)])
    assert [found.seq for found in await kit.substrate.transcripts.lines(lease.task_id)] == list(range(300))


async def test_an_append_consumes_the_head_of_the_inbox_in_order(kit: Kit) -> None:
    lease = await kit.owned_session()
    for n in (1, 2, 3):
        await kit.substrate.inboxes.send_message(lease.task_id, f"m{n}", "hi", op=f"o{n}", sender=None)
    ack = await lease.append([line()], consume=["m:m1", "m:m2"])
    assert ack.unread == 1
    assert await kit.inbox(lease.task_id) == ("m:m3",)
    fate = kit.substrate.inboxes.fate
    assert await fate(lease.task_id, "m:m2") == f"consumed {lease.task_id} 0"
    assert await fate(lease.task_id, "m:m3") is None


@pytest.mark.parametrize("consume", [["m:m2"], ["m:m2", "m:m1"], ["m:m1", "m:m2", "m:m3"]])
async def test_consuming_anything_but_a_head_is_a_conflict(kit: Kit, consume: list[str]) -> None:
    lease = await kit.owned_session()
    for n in (1, 2):
        await kit.substrate.inboxes.send_message(lease.task_id, f"m{n}", "hi", op=f"o{n}", sender=None)
    with pytest.raises(LeaseLost):
        await lease.append([line()], consume=consume)
    assert lease.node.reason is AbortReason.LEASE_LOST
    assert await kit.inbox(lease.task_id) == ("m:m1", "m:m2")
    assert await kit.substrate.transcripts.lines(lease.task_id) == ()


async def test_a_transcript_that_was_rolled_back_is_a_conflict(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.append([line()])
    await kit.field(lease.task_id, "tlen", "0")
    with pytest.raises(LeaseLost):
        await lease.append([line()])


async def test_usage_is_absolute_and_belongs_to_the_run(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.append([line()], usage=Usage(input_tokens=5))
    await lease.append([line()], usage=Usage(input_tokens=7, turns=1))
    assert (await kit.substrate.records.get(lease.task_id)).usage == Usage(input_tokens=7, turns=1)
    await lease.finish(DONE)
    await kit.substrate.inboxes.send_message(lease.task_id, "m", "more", op="o", sender=None)
    assert (await kit.substrate.records.get(lease.task_id)).usage == Usage()


async def test_a_question_is_asked_until_a_message_is_consumed(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.append([line()], asked=True)
    assert (await kit.substrate.records.get(lease.task_id)).asked
    await lease.release()
    again = await kit.claim(lease.task_id)
    assert again.grant.asked
    await kit.substrate.inboxes.send_message(lease.task_id, "m", "yes", op="o", sender=None)
    await again.append([line()], consume=["m:m"])
    assert not (await kit.substrate.records.get(lease.task_id)).asked


async def test_drafts_and_marks_survive_a_takeover_until_the_assistant_message(kit: Kit) -> None:
    lease = await kit.owned_session()
    draft = Draft(run=1, turn=1, blocks=call("t1").content)
    await lease.draft(draft, ["t1", "t2"])
    await lease.tool_done("t1", {"text": "é"})
    await lease.draft(draft, ["t1"])
    await kit.expire(lease.task_id)
    new = await kit.claim(lease.task_id)
    assert new.grant.draft == draft
    marks = await kit.substrate.transcripts.marks(lease.task_id)
    assert marks == {"t1": Mark(MarkState.DONE, '{"text":"é"}'.encode()), "t2": Mark(MarkState.STARTED)}
    await new.append([line("only a user line")])
    assert (await kit.raw(lease.task_id))["draft"] != ""
    await new.append([call("t1"), result("t1")])
    assert (await kit.raw(lease.task_id))["draft"] == ""


async def test_nothing_starts_once_the_run_is_stopped(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="enough", op="o")
    ack = await lease.draft(Draft(run=1, turn=1, blocks=()), ["t1"])
    assert ack.stop is not None
    assert ack.stop.reason == "enough"
    await lease.tool_done("t1", {})
    assert await kit.substrate.transcripts.marks(lease.task_id) == {}
    assert (await kit.raw(lease.task_id)).get("draft", "") == ""
    assert (await lease.append([line()])).stop is not None
    assert len(await kit.substrate.transcripts.lines(lease.task_id)) == 1
    assert lease.node.reason is AbortReason.USER


async def test_output_activities_and_progress(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.emit(activities=[str(n) for n in range(7)], tool_at=True)
    assert await kit.state(lease.task_id) is State.RUNNING
    await lease.emit(chunks=["a", "b"], token_at=True)
    record = await kit.substrate.records.get(lease.task_id)
    assert record.state is State.PRODUCING_OUTPUT
    assert record.activities == ("2", "3", "4", "5", "6")
    assert min(record.progress.token_at, record.progress.tool_at, record.progress.heartbeat_at) > 0
    assert await kit.substrate.events.output(lease.task_id) == "ab"
    assert await kit.substrate.events.output(lease.task_id, 2) == ""


async def test_finish_stores_the_outcome_and_notifies_the_parent(kit: Kit) -> None:
    lease = await kit.owned_session()
    owner = await kit.claim(await kit.agent(lease), process="w")
    outcome = DONE.model_copy(update={"usage": Usage(output_tokens=9), "text": "é </result>", "structured": {"a": [1]}})
    done = await owner.finish(outcome, [line("final", role="assistant")])
    assert done.status is FinishStatus.OK
    record = await kit.substrate.records.get(owner.task_id)
    assert record.outcome is not None
    outcome = outcome.model_copy(update={"duration_ms": record.outcome.duration_ms})  # the server's measure
    assert record.outcome == outcome
    assert (record.state, record.lease, record.tlen, record.usage) == (State.COMPLETED, None, 1, outcome.usage)
    assert await kit.substrate.records.outcome(owner.task_id, 1) == outcome
    assert await kit.substrate.records.outcome(owner.task_id, 2) is None
    assert await kit.substrate.records.run_count(owner.task_id) == 1
    (entry,) = await kit.substrate.inboxes.unread(lease.task_id)
    assert entry.id == f"n:{owner.task_id}:1"
    assert "<status>completed</status>" in entry.text
    assert "é &lt;/result>" in entry.text
    assert (await lease.renew()).open_children == 0
    assert await kit.substrate.hints.wait("coordinator-1", sessions=False, timeout_s=2) == lease.task_id


async def test_finish_is_refused_for_unread_messages_and_open_children_and_changes_nothing(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    await kit.substrate.inboxes.send_message(lease.task_id, "m", "wait", op="o", sender=None)
    assert (await lease.finish(DONE, [line()])).status is FinishStatus.INBOX
    await lease.append([line()], consume=["m:m"])
    refused = await lease.finish(DONE, [line()])
    assert (refused.status, refused.open_tasks) == (FinishStatus.CHILDREN, (agent,))
    assert lease.tlen == 1
    assert await kit.state(lease.task_id) is State.RUNNING


async def test_a_failed_parent_takes_its_children_with_it(kit: Kit) -> None:
    lease = await kit.owned_session()
    owner = await kit.claim(await kit.agent(lease), process="w")
    assert (await lease.finish(BROKEN)).status is FinishStatus.OK
    assert (await kit.substrate.records.get(lease.task_id)).stop is None
    assert await kit.substrate.hints.wait("w", sessions=False, timeout_s=2) == owner.task_id
    assert (await owner.renew()).stop is not None
    assert owner.node.reason is AbortReason.PARENT
    assert (await owner.finish(DONE)).status is FinishStatus.STOPPED
    assert await kit.state(owner.task_id) is State.STOPPED
    assert await kit.inbox(lease.task_id) == (f"n:{owner.task_id}:1",)
    await kit.substrate.inboxes.send_message(lease.task_id, "m", "go on", op="o", sender=None)
    again = await kit.claim(lease.task_id)
    assert again.stop is None
    assert await kit.inbox(lease.task_id) == (f"n:{owner.task_id}:1", "m:m")


async def test_a_stopped_run_keeps_its_result_as_partial(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="enough", op="o")
    assert (await lease.finish(DONE)).status is FinishStatus.STOPPED
    outcome = await kit.substrate.records.outcome(lease.task_id, 1)
    assert outcome is not None
    assert (outcome.state, outcome.subtype, outcome.reason) == (State.STOPPED, Subtype.EXECUTION, "enough")
    assert (outcome.text, outcome.partial) == ("done", True)


async def test_a_limit_stop_ends_as_failed_but_only_for_the_task_itself(kit: Kit) -> None:
    lease = await kit.owned_session()
    owner = await kit.claim(await kit.agent(lease), process="w")
    await kit.substrate.records.request_stop(lease.task_id, kind="limit", reason="time limit", op="o")
    await owner.renew()
    assert owner.node.reason is AbortReason.PARENT
    await owner.finish(DONE)
    assert await kit.state(owner.task_id) is State.STOPPED
    await lease.renew()
    assert lease.node.reason is AbortReason.TIME_LIMIT
    await lease.finish(DONE)
    assert await kit.state(lease.task_id) is State.FAILED


async def test_messages_to_a_run_that_did_not_complete_are_undeliverable(kit: Kit) -> None:
    lease = await kit.owned_session()
    owner = await kit.claim(await kit.agent(lease), process="w")
    sender = (lease.task_id, lease.token)
    await kit.substrate.inboxes.send_message(owner.task_id, "m1", "hi", op="o1", sender=sender)
    await owner.finish(BROKEN)
    outcome = await kit.substrate.records.outcome(owner.task_id, 1)
    assert outcome is not None
    assert outcome.undeliverable == ("m:m1",)
    assert await kit.substrate.inboxes.fate(owner.task_id, "m:m1") == "undeliverable model error"
    assert await kit.inbox(owner.task_id) == ()
    (entry,) = await kit.substrate.inboxes.unread(lease.task_id)
    assert "m:m1" in entry.text


async def test_a_command_that_ends_returns_unread_messages(kit: Kit) -> None:
    lease = await kit.owned_session()
    owner = await kit.claim(await kit.shell(lease), process="w")
    await kit.substrate.inboxes.send_message(owner.task_id, "m1", "y", op="o1", sender=(lease.task_id, lease.token))
    assert (await owner.finish(DONE)).status is FinishStatus.OK
    assert await kit.substrate.inboxes.fate(owner.task_id, "m:m1") == "undeliverable command ended"


async def test_a_parked_agent_is_woken_by_its_shell(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    shell = await kit.claim(await kit.shell(agent), process="w")
    assert await agent.park("inbox", "children") is ParkStatus.OK
    wake = (await shell.finish(DONE)).wake
    assert wake is not None
    assert (wake.task_id, wake.run, wake.attempt) == (agent.task_id, 1, 1)
    assert (await kit.substrate.records.get(agent.task_id)).park is None
    await kit.claim(agent.task_id, run=1)


async def test_a_parked_session_is_woken_by_a_hint(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.redis.delete(kit.keys.session_hints)
    owner = await kit.claim(await kit.agent(lease), process="w")
    await lease.park("inbox", "children")
    assert (await owner.finish(DONE)).wake is None
    assert await kit.substrate.hints.wait("p", sessions=True, timeout_s=2) == lease.task_id


WRITES = {
    "append": lambda lease: lease.append([call("t"), result("t")]),
    "draft": lambda lease: lease.draft(Draft(run=1, turn=1, blocks=()), ["t"]),
    "tool_done": lambda lease: lease.tool_done("t", {"a": 1}),
    "emit": lambda lease: lease.emit(chunks=["once"]),
    "finish": lambda lease: lease.finish(DONE, [line()]),
    "park": lambda lease: lease.park("inbox", "children"),
    "renew": lambda lease: lease.renew(),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_whose_reply_is_lost_happens_once(kit: Kit, name: str) -> None:
    lease = await kit.owned_session()
    with fail(f"{name}.after", LOST_REPLY, lease.task_id):
        answer = await WRITES[name](lease)
    assert not lease.node.aborted
    if name == "finish":
        assert answer.status is FinishStatus.ALREADY
        assert len(await kit.substrate.transcripts.lines(lease.task_id)) == 1
    if name == "park":
        assert answer is ParkStatus.OK
    if name == "append":
        assert answer.tlen == lease.tlen == 2
        assert len(await kit.substrate.transcripts.lines(lease.task_id)) == 2
    if name == "emit":
        assert await kit.substrate.events.output(lease.task_id) == "once"


async def test_a_lost_reply_of_an_append_that_consumed_is_answered_the_same(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.substrate.inboxes.send_message(lease.task_id, "m1", "hi", op="o1", sender=None)
    with fail("append.after", LOST_REPLY):
        ack = await lease.append([line()], consume=["m:m1"])
    assert (ack.tlen, ack.unread) == (1, 0)
    await kit.substrate.inboxes.send_message(lease.task_id, "m2", "hi", op="o2", sender=None)
    assert (await lease.append([line()], consume=["m:m2"])).tlen == 2


async def test_a_cancelled_caller_leaves_the_length_known(kit: Kit) -> None:
    lease = await kit.owned_session()
    with hold("append.after", lease.task_id) as held:
        writing = asyncio.create_task(lease.append([line()]))
        await held.reached.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert (await lease.append([line()])).tlen == 2
    assert not lease.node.aborted


async def test_an_ended_lease_writes_nothing_more_and_is_not_lost(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.finish(DONE)
    for write in ("append", "renew", "emit"):
        with pytest.raises(LeaseLost):
            await WRITES[write](lease)
    assert not lease.node.aborted
    await lease.heartbeat()  # returns
