"""ask, answer, and the park for an answer: a question is answered once, by somebody or by its deadline (PROTOCOL 3)."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost, ScriptRefused
from celeriac.common.contract.events import SystemEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import (
    TIMEOUT,
    Answered,
    AnswerStatus,
    AskResult,
    AskStatus,
    ClaimRefusal,
    ParkStatus,
    Question,
    Resend,
    Wake,
)
from celeriac.common.testing.points import fail
from celeriac.common.testing.substrate_kit import BROKEN, DONE, Kit

BODY: JsonObject = {"text": 'run "rm -rf build"? ü\n', "choices": ["yes", "no"], "none": []}
YES: JsonObject = {"allowed": True, "by": "user ü", "rules": []}
NO: JsonObject = {"allowed": False}
LOST_REPLY = RedisConnectionError("the reply was lost")


async def asked_by_agent(kit: Kit) -> tuple[Lease, Lease, str]:
    """A session, its agent, and a question of the agent."""
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    qid = ids.question(agent.task_id, "t1")
    assert (await agent.ask(qid, BODY, await kit.later())).status is AskStatus.OK
    return lease, agent, qid


def test_the_id_of_a_question_is_that_of_its_call() -> None:
    session, other = ids.new_session(), ids.new_session()
    assert ids.question(session, "t") == ids.question(session, "t")
    calls = {ids.question(session, "t"), ids.question(session, "u"), ids.question(other, "t")}
    assert len({*calls, ids.operation(session, "t")}) == 4


async def test_a_question_is_open_for_followers_and_told_as_an_event(kit: Kit) -> None:
    lease = await kit.owned_session()
    assert await kit.substrate.questions.open(lease.task_id) == ()
    last = await kit.substrate.events.last_id(lease.task_id)
    qid, deadline = ids.question(lease.task_id, "t1"), await kit.later()
    assert await lease.ask(qid, BODY, deadline) == AskResult(AskStatus.OK, None, deadline)
    (found,) = await kit.substrate.questions.open(lease.task_id)
    assert found == Question(qid, lease.task_id, 1, BODY, deadline, found.asked_at)
    assert 0 < found.asked_at < deadline
    ((_, entry),) = await kit.substrate.events.read(lease.task_id, last, block_ms=None)
    event = await kit.substrate.events.expand(entry)
    assert isinstance(event, SystemEvent)
    assert (event.subtype, event.data) == ("question", {"qid": qid, "deadline_ms": deadline})
    assert (event.task_id, event.worker) == (lease.task_id, "coordinator-1")


async def test_questions_of_the_whole_session_are_open_oldest_first(kit: Kit) -> None:
    lease, agent, qid = await asked_by_agent(kit)
    await kit.question(agent.task_id, qid, asked_at=1)
    own, second = ids.question(lease.task_id, "t1"), ids.question(agent.task_id, "t2")
    await lease.ask(own, BODY, await kit.later())
    await agent.ask(second, BODY, await kit.later())
    found = await kit.substrate.questions.open(agent.task_id)  # any id of the session names it
    assert found[0].qid == qid
    assert {question.qid for question in found[1:]} == {own, second}
    await kit.substrate.questions.answer(agent.task_id, qid, YES, op="o")
    await kit.deadline_passes(agent.task_id, second)
    assert [question.qid for question in await kit.substrate.questions.open(lease.task_id)] == [own]


async def test_the_first_precondition_of_ask_is_to_hold_the_task(kit: Kit) -> None:
    old = await kit.owned_session()
    qid = ids.question(old.task_id, "t1")
    await kit.expire(old.task_id)
    new = await kit.claim(old.task_id)
    await kit.substrate.records.request_stop(old.task_id, kind="user", reason="r", op="s")
    with pytest.raises(LeaseLost):
        await old.ask(qid, BODY, await kit.later())
    assert (await new.ask(qid, BODY, await kit.later())).status is AskStatus.STOP
    assert await kit.redis.hlen(kit.keys.session(old.task_id, "ask")) == 0


async def test_a_stopped_run_asks_nothing_also_what_it_has_asked_before(kit: Kit) -> None:
    lease, agent, qid = await asked_by_agent(kit)
    await kit.substrate.questions.answer(agent.task_id, qid, YES, op="o")
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="s")  # through the chain
    assert await agent.ask(qid, BODY, await kit.later()) == AskResult(AskStatus.STOP)
    assert agent.stop is not None
    assert agent.node.aborted


async def test_the_same_question_again_gets_what_is_stored(kit: Kit) -> None:
    lease = await kit.owned_session()
    qid, deadline = ids.question(lease.task_id, "t1"), await kit.later()
    await lease.ask(qid, BODY, deadline)
    assert await lease.ask(qid, {"other": 1}, deadline + 9) == AskResult(AskStatus.STORED, None, deadline)
    assert (await kit.substrate.questions.open(lease.task_id))[0].body == BODY
    await kit.substrate.questions.answer(lease.task_id, qid, YES, op="o")
    assert await lease.ask(qid, BODY, deadline) == AskResult(AskStatus.STORED, YES, deadline)
    await kit.deadline_passes(lease.task_id, qid)
    assert await lease.ask(qid, BODY, deadline) == AskResult(AskStatus.STORED, YES, 1)


async def test_asking_again_after_the_deadline_stores_timeout_as_the_answer(kit: Kit) -> None:
    lease = await kit.owned_session()
    qid = ids.question(lease.task_id, "t1")
    assert (await lease.ask(qid, BODY, 1)).status is AskStatus.OK
    assert await lease.ask(qid, BODY, 1) == AskResult(AskStatus.STORED, TIMEOUT, 1)
    late = await kit.substrate.questions.answer(lease.task_id, qid, YES, op="o")
    assert late == Answered(AnswerStatus.FIRST, TIMEOUT)


async def test_an_answer_is_given_once_and_hints_the_owner(kit: Kit) -> None:
    _, agent, qid = await asked_by_agent(kit)
    answer = kit.substrate.questions.answer
    assert await answer(agent.task_id, qid, YES, op="o1") == Answered(AnswerStatus.OK, YES)
    assert await kit.substrate.hints.wait("w", sessions=False, timeout_s=2) == agent.task_id
    assert await answer(agent.task_id, qid, NO, op="o2") == Answered(AnswerStatus.FIRST, YES)
    assert await kit.substrate.hints.wait("w", sessions=False, timeout_s=0.05) is None
    assert await kit.substrate.questions.open(agent.task_id) == ()


async def test_the_same_op_gets_the_stored_answer_even_after_the_run(kit: Kit) -> None:
    _, agent, qid = await asked_by_agent(kit)
    answer = kit.substrate.questions.answer
    await agent.park(f"answer:{qid}", "human", at_ms=await kit.later())
    first = await answer(agent.task_id, qid, YES, op="o1")
    again = await kit.claim(agent.task_id)
    await again.finish(DONE)
    assert await answer(agent.task_id, qid, YES, op="o1") == first
    assert first == Answered(AnswerStatus.OK, YES, Wake(agent.task_id, 1, 1))
    assert await answer(agent.task_id, qid, NO, op="o2") == Answered(AnswerStatus.FIRST, YES)


async def test_an_answer_to_nothing_is_unknown_and_not_kept(kit: Kit) -> None:
    lease, agent, qid = await asked_by_agent(kit)
    answer = kit.substrate.questions.answer
    unknown = Answered(AnswerStatus.UNKNOWN)
    own = ids.question(lease.task_id, "t1")
    assert await answer(lease.task_id, own, YES, op="o1") == unknown
    assert await answer(lease.task_id, qid, YES, op="o2") == unknown  # another task's
    assert await answer(ids.child(lease.task_id, Kind.AGENT, "?"), qid, YES, op="o3") == unknown
    assert await answer(ids.new_session(), qid, YES, op="o4") == unknown
    await answer(agent.task_id, qid, YES, op="o5")
    assert await answer(agent.task_id, f"answer:{qid}", YES, op="o6") == unknown
    await lease.ask(own, BODY, await kit.later())
    assert (await answer(lease.task_id, own, YES, op="o1")).status is AnswerStatus.OK


@pytest.mark.parametrize("how", ["completed", "failed", "stopping", "parent stopping", "next run"])
async def test_nobody_answers_a_run_that_is_over(kit: Kit, how: str) -> None:
    lease, agent, qid = await asked_by_agent(kit)
    if how == "stopping":
        await kit.substrate.records.request_stop(agent.task_id, kind="user", reason="r", op="s")
    elif how == "parent stopping":
        await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="s")
    else:
        await agent.finish(BROKEN if how == "failed" else DONE)
    if how == "next run":
        sender = (lease.task_id, lease.token)
        await kit.substrate.inboxes.send_message(agent.task_id, "m", "more", op="m", sender=sender)
        await kit.claim(agent.task_id, run=2)
    assert await kit.substrate.questions.open(lease.task_id) == ()
    await kit.deadline_passes(agent.task_id, qid)  # an ended run comes first: not even `timeout` is written
    assert await kit.substrate.questions.answer(agent.task_id, qid, YES, op="o") == Answered(AnswerStatus.ENDED)
    assert await kit.redis.hlen(kit.keys.session(agent.task_id, "ask")) == 1


async def test_what_was_answered_before_the_run_ended_stays_first(kit: Kit) -> None:
    _, agent, qid = await asked_by_agent(kit)
    await kit.substrate.questions.answer(agent.task_id, qid, YES, op="o1")
    await agent.finish(DONE)
    late = await kit.substrate.questions.answer(agent.task_id, qid, NO, op="o2")
    assert late == Answered(AnswerStatus.FIRST, YES)


async def test_an_answer_after_the_deadline_is_stored_as_timeout_and_wakes(kit: Kit) -> None:
    _, agent, qid = await asked_by_agent(kit)
    await agent.park(f"answer:{qid}", "human", at_ms=await kit.later())
    await kit.deadline_passes(agent.task_id, qid)
    answer = kit.substrate.questions.answer
    late = await answer(agent.task_id, qid, YES, op="o")
    assert late == Answered(AnswerStatus.FIRST, TIMEOUT, Wake(agent.task_id, 1, 1))
    assert await answer(agent.task_id, qid, YES, op="o") == Answered(AnswerStatus.FIRST, TIMEOUT)
    again = await kit.claim(agent.task_id)
    assert (await again.ask(qid, BODY, 1)).answer == TIMEOUT


async def test_an_answer_wakes_who_is_parked_for_it(kit: Kit) -> None:
    _, agent, qid = await asked_by_agent(kit)
    assert await agent.park(f"answer:{qid}", "human", at_ms=await kit.later()) is ParkStatus.OK
    park = (await kit.substrate.records.get(agent.task_id)).park
    assert park is not None
    assert (park.until, park.why) == (f"answer:{qid}", "human")
    assert await kit.substrate.claim(agent.task_id, 1, process="w") is ClaimRefusal.PARKED
    await kit.wake_long_ago(agent.task_id)
    assert await kit.substrate.records.resend(agent.task_id) is None
    answered = await kit.substrate.questions.answer(agent.task_id, qid, YES, op="o")
    assert answered.wake == Wake(agent.task_id, 1, 1)
    record = await kit.substrate.records.get(agent.task_id)
    assert (record.park, record.state) == (None, State.QUEUED)
    assert await kit.substrate.records.resend(agent.task_id) == Resend(run=1, attempt=2)  # if the wake-up got lost
    again = await kit.claim(agent.task_id, run=1)
    assert (await again.ask(qid, BODY, 1)).answer == YES
    assert record.attempt == 0


async def test_an_answer_wakes_a_session_by_a_hint(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.redis.delete(kit.keys.session_hints)
    qid = ids.question(lease.task_id, "t1")
    await lease.ask(qid, BODY, await kit.later())
    await lease.park(f"answer:{qid}", "human", at_ms=await kit.later())
    assert (await kit.substrate.questions.answer(lease.task_id, qid, YES, op="o")).wake is None
    assert await kit.substrate.hints.wait("p", sessions=True, timeout_s=2) == lease.task_id


async def test_a_park_for_an_answer_ends_at_its_time(kit: Kit) -> None:
    _, agent, qid = await asked_by_agent(kit)
    await agent.park(f"answer:{qid}", "human", at_ms=1)
    await kit.wake_long_ago(agent.task_id)
    assert await kit.substrate.records.resend(agent.task_id) == Resend(run=1, attempt=1)
    await kit.deadline_passes(agent.task_id, qid)
    again = await kit.claim(agent.task_id)
    assert (await again.ask(qid, BODY, 1)).answer == TIMEOUT


async def test_preconditions_of_a_park_for_an_answer_in_order(kit: Kit) -> None:
    lease, agent, qid = await asked_by_agent(kit)
    park, sender = f"answer:{qid}", (lease.task_id, lease.token)
    for at_ms in (None, 0):
        with pytest.raises(ScriptRefused):
            await agent.park(park, "human", at_ms=at_ms)
    await kit.substrate.inboxes.send_message(agent.task_id, "m", "a", op="m", sender=sender)
    await kit.substrate.questions.answer(agent.task_id, qid, YES, op="o")
    assert await agent.park(park, "human", at_ms=await kit.later()) is ParkStatus.ANSWERED  # not INBOX
    assert agent.may_act()
    second = ids.question(agent.task_id, "t2")
    await agent.ask(second, BODY, await kit.later())
    await kit.substrate.records.request_stop(agent.task_id, kind="user", reason="r", op="s")
    assert await agent.park(park, "human", at_ms=await kit.later()) is ParkStatus.STOP
    assert agent.may_act()


async def test_a_park_for_an_answer_ignores_the_inbox_and_other_answers(kit: Kit) -> None:
    lease, agent, qid = await asked_by_agent(kit)
    second = ids.question(agent.task_id, "t2")
    await agent.ask(second, BODY, await kit.later())
    sender = (lease.task_id, lease.token)
    await kit.substrate.inboxes.send_message(agent.task_id, "m1", "a", op="m1", sender=sender)
    assert await agent.park(f"answer:{qid}", "human", at_ms=await kit.later()) is ParkStatus.OK
    sent = await kit.substrate.inboxes.send_message(agent.task_id, "m2", "a", op="m2", sender=sender)
    assert sent.wake is None
    assert (await kit.substrate.questions.answer(agent.task_id, second, NO, op="o2")).wake is None
    assert await kit.substrate.claim(agent.task_id, 1, process="w") is ClaimRefusal.PARKED
    assert (await kit.substrate.questions.answer(agent.task_id, qid, YES, op="o1")).wake is not None
    again = await kit.claim(agent.task_id)
    assert (await again.ask(second, BODY, 1)).answer == NO


async def test_two_questions_of_one_message_are_answered_in_any_order(kit: Kit) -> None:
    _, agent, first = await asked_by_agent(kit)
    second = ids.question(agent.task_id, "t2")
    await agent.ask(second, BODY, await kit.later())
    await kit.substrate.questions.answer(agent.task_id, second, NO, op="o2")
    await agent.park(f"answer:{first}", "human", at_ms=await kit.later())
    await kit.substrate.questions.answer(agent.task_id, first, YES, op="o1")
    again = await kit.claim(agent.task_id)
    assert [(await again.ask(qid, BODY, 1)).answer for qid in (first, second)] == [YES, NO]


async def test_an_ask_whose_reply_is_lost_happens_once(kit: Kit) -> None:
    lease = await kit.owned_session()
    qid, deadline = ids.question(lease.task_id, "t1"), await kit.later()
    last = await kit.substrate.events.last_id(lease.task_id)
    with fail("ask.after", LOST_REPLY, lease.task_id):
        assert await lease.ask(qid, BODY, deadline) == AskResult(AskStatus.OK, None, deadline)
    assert len(await kit.substrate.events.read(lease.task_id, last, block_ms=None)) == 1
    await kit.substrate.questions.answer(lease.task_id, qid, YES, op="o")
    with fail("ask.after", LOST_REPLY, lease.task_id):
        assert (await lease.ask(qid, BODY, deadline)).answer == YES
    assert not lease.node.aborted


async def test_an_answer_whose_reply_is_lost_is_given_once(kit: Kit) -> None:
    _, agent, qid = await asked_by_agent(kit)
    await agent.park(f"answer:{qid}", "human", at_ms=await kit.later())
    answer = kit.substrate.questions.answer
    with fail("answer.after", LOST_REPLY), pytest.raises(RedisConnectionError):
        await answer(agent.task_id, qid, YES, op="o")
    again = await answer(agent.task_id, qid, YES, op="o")
    assert again == Answered(AnswerStatus.OK, YES, Wake(agent.task_id, 1, 1))
