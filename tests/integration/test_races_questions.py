"""The race of PROTOCOL 8 "answer / deadline, stop, takeover, second answer"; each order is forced at a point."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import State
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import (
    TIMEOUT,
    Answered,
    AnswerStatus,
    AskResult,
    AskStatus,
    ClaimRefusal,
    FinishStatus,
    ParkStatus,
    StopStatus,
    Wake,
)
from celeriac.common.testing.points import fail, hold
from celeriac.common.testing.substrate_kit import DONE, Kit

BODY: JsonObject = {"text": "may I?"}
YES: JsonObject = {"allowed": True}
NO: JsonObject = {"allowed": False}
LOST_REPLY = RedisConnectionError("the reply was lost")


async def asked(kit: Kit) -> tuple[Lease, str]:
    """An agent that has asked a question."""
    agent = await kit.claim(await kit.agent(await kit.owned_session()), process="w")
    qid = ids.question(agent.task_id, "t1")
    assert (await agent.ask(qid, BODY, await kit.later())).status is AskStatus.OK
    return agent, qid


async def parked(kit: Kit) -> tuple[Lease, str]:
    """An agent that waits for the answer without a slot."""
    agent, qid = await asked(kit)
    assert await agent.park(f"answer:{qid}", "human", at_ms=await kit.later()) is ParkStatus.OK
    return agent, qid


def answer(kit: Kit, task_id: ids.TaskId, qid: str, body: JsonObject = YES, op: str = "o") -> "asyncio.Task[Answered]":
    return asyncio.create_task(kit.substrate.questions.answer(task_id, qid, body, op=op))


async def test_an_answer_before_the_deadline_is_what_the_owner_gets_after_it(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await asked(kit)
    with hold("ask.before", agent.task_id) as held:
        asking = asyncio.create_task(agent.ask(qid, BODY, 1))
        await held.reached.wait()
        assert await answer(kit, agent.task_id, qid) == Answered(AnswerStatus.OK, YES)
        await kit.deadline_passes(agent.task_id, qid)
        held.release()
        assert await asking == AskResult(AskStatus.STORED, YES, 1)


async def test_an_answer_that_the_deadline_overtook_is_a_timeout_for_both(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await parked(kit)
    with hold("answer.before", agent.task_id) as held:
        answering = answer(kit, agent.task_id, qid)
        await held.reached.wait()
        await kit.deadline_passes(agent.task_id, qid)
        held.release()
        assert await answering == Answered(AnswerStatus.FIRST, TIMEOUT, Wake(agent.task_id, 1, 1))
    again = await kit.claim(agent.task_id)
    assert (await again.ask(qid, BODY, 1)).answer == TIMEOUT


async def test_an_answer_after_the_owner_has_seen_the_deadline_pass_is_too_late(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await asked(kit)
    with hold("answer.before", agent.task_id) as held:
        answering = answer(kit, agent.task_id, qid)
        await held.reached.wait()
        await kit.deadline_passes(agent.task_id, qid)
        assert (await agent.ask(qid, BODY, 1)).answer == TIMEOUT
        held.release()
        assert await answering == Answered(AnswerStatus.FIRST, TIMEOUT)


@pytest.mark.parametrize("parked_for_it", [True, False])
async def test_a_stop_before_the_answer_ends_the_question(server_kit: Kit, parked_for_it: bool) -> None:
    kit = server_kit
    agent, qid = await (parked(kit) if parked_for_it else asked(kit))
    with hold("answer.before", agent.task_id) as held:
        answering = answer(kit, agent.task_id, qid)
        await held.reached.wait()
        stopped = await kit.substrate.records.request_stop(agent.task_id, kind="user", reason="r", op="s")
        assert stopped.status is (StopStatus.STOPPED if parked_for_it else StopStatus.REQUESTED)
        held.release()
        assert await answering == Answered(AnswerStatus.ENDED)
    assert await kit.substrate.questions.open(agent.task_id) == ()
    if not parked_for_it:
        assert (await agent.ask(qid, BODY, 1)).status is AskStatus.STOP
        assert (await agent.finish(DONE)).status is FinishStatus.STOPPED
    assert await kit.state(agent.task_id) is State.STOPPED


async def test_a_stop_of_the_session_before_the_answer_ends_the_question_of_its_agent(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await parked(kit)
    with hold("answer.before", agent.task_id) as held:
        answering = answer(kit, agent.task_id, qid)
        await held.reached.wait()
        session = ids.session_of(agent.task_id)
        await kit.substrate.records.request_stop(session, kind="user", reason="r", op="s")
        held.release()
        assert await answering == Answered(AnswerStatus.ENDED)
    assert await kit.substrate.claim(agent.task_id, 1, process="w") is ClaimRefusal.STOPPED


async def test_a_stop_after_the_answer_still_stops(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await parked(kit)
    with hold("request_stop.before", agent.task_id) as held:
        request = kit.substrate.records.request_stop(agent.task_id, kind="user", reason="r", op="s")
        stopping = asyncio.create_task(request)
        await held.reached.wait()
        assert (await answer(kit, agent.task_id, qid)).wake == Wake(agent.task_id, 1, 1)
        held.release()
        assert (await stopping).status is StopStatus.STOPPED
    assert await kit.substrate.claim(agent.task_id, 1, process="w") is ClaimRefusal.DONE


async def test_the_end_of_the_run_before_the_answer_ends_the_question_also_for_the_next_run(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    qid = ids.question(lease.task_id, "t1")
    await lease.ask(qid, BODY, await kit.later())
    with hold("answer.before", lease.task_id) as held:
        answering = answer(kit, lease.task_id, qid)
        await held.reached.wait()
        await lease.finish(DONE)
        await kit.substrate.inboxes.send_message(lease.task_id, "m", "more", op="m", sender=None)
        await kit.claim(lease.task_id, run=2)
        held.release()
        assert await answering == Answered(AnswerStatus.ENDED)


@pytest.mark.parametrize("point", ["ask.before", "ask.after"])
async def test_a_takeover_asks_the_same_and_gets_what_is_stored(server_kit: Kit, point: str) -> None:
    kit = server_kit
    old = await kit.claim(await kit.agent(await kit.owned_session()), process="w")
    qid, deadline = ids.question(old.task_id, "t1"), await kit.later()
    with hold(point, old.task_id) as held:
        asking = asyncio.create_task(old.ask(qid, BODY, deadline))
        await held.reached.wait()
        await kit.expire(old.task_id)
        new = await kit.claim(old.task_id, process="w2")
        again = await new.ask(qid, BODY, deadline + 9)
        held.release()
        if point == "ask.before":
            with pytest.raises(LeaseLost):
                await asking
            assert again == AskResult(AskStatus.OK, None, deadline + 9)
        else:
            assert (await asking).status is AskStatus.OK
            assert again == AskResult(AskStatus.STORED, None, deadline)
    assert len(await kit.substrate.questions.open(old.task_id)) == 1
    await answer(kit, old.task_id, qid)
    assert (await new.ask(qid, BODY, deadline)).answer == YES


async def test_a_takeover_gets_the_answer_that_came_while_nobody_worked(server_kit: Kit) -> None:
    kit = server_kit
    old, qid = await asked(kit)
    with hold("claim.before", old.task_id) as held:
        claiming = asyncio.create_task(kit.claim(old.task_id, process="w2"))
        await held.reached.wait()
        await kit.expire(old.task_id)
        assert (await answer(kit, old.task_id, qid)).status is AnswerStatus.OK
        held.release()
        new = await claiming
    assert (await new.ask(qid, BODY, 1)).answer == YES
    with pytest.raises(LeaseLost):
        await old.park(f"answer:{qid}", "human", at_ms=1)


async def test_of_two_answers_the_first_is_kept_and_told_to_the_second(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await parked(kit)
    with hold("answer.before", agent.task_id) as held:
        late = answer(kit, agent.task_id, qid, NO, op="o1")
        await held.reached.wait()
        first = await answer(kit, agent.task_id, qid, YES, op="o2")
        held.release()
        assert await late == Answered(AnswerStatus.FIRST, YES)
    assert first == Answered(AnswerStatus.OK, YES, Wake(agent.task_id, 1, 1))
    again = await kit.claim(agent.task_id)
    assert (await again.ask(qid, BODY, 1)).answer == YES


async def test_a_park_for_an_answer_that_has_just_arrived_is_refused(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await asked(kit)
    with hold("park.before", agent.task_id) as held:
        parking = asyncio.create_task(agent.park(f"answer:{qid}", "human", at_ms=await kit.later()))
        await held.reached.wait()
        assert await answer(kit, agent.task_id, qid) == Answered(AnswerStatus.OK, YES)
        held.release()
        assert await parking is ParkStatus.ANSWERED
    assert agent.may_act()
    assert (await agent.ask(qid, BODY, 1)).answer == YES


async def test_an_answer_that_arrives_just_after_the_park_wakes(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await asked(kit)
    with hold("answer.before", agent.task_id) as held:
        answering = answer(kit, agent.task_id, qid)
        await held.reached.wait()
        assert await agent.park(f"answer:{qid}", "human", at_ms=await kit.later()) is ParkStatus.OK
        assert await kit.substrate.claim(agent.task_id, 1, process="w") is ClaimRefusal.PARKED
        held.release()
        assert (await answering).wake == Wake(agent.task_id, 1, 1)
    again = await kit.claim(agent.task_id, run=1)
    assert (await again.ask(qid, BODY, 1)).answer == YES


async def test_a_lost_wake_up_of_an_answer_is_sent_again(server_kit: Kit) -> None:
    kit = server_kit
    agent, qid = await parked(kit)
    with hold("resend.before", agent.task_id) as held:
        resending = asyncio.create_task(kit.substrate.records.resend(agent.task_id))
        await held.reached.wait()
        await kit.wake_long_ago(agent.task_id)
        await answer(kit, agent.task_id, qid)
        held.release()
        assert await resending is not None
    await kit.claim(agent.task_id, run=1)


async def test_lost_replies_of_ask_and_answer_are_asked_for_again(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    qid, deadline = ids.question(lease.task_id, "t1"), await kit.later()
    with fail("ask.after", LOST_REPLY, lease.task_id):
        assert await lease.ask(qid, BODY, deadline) == AskResult(AskStatus.OK, None, deadline)
    with fail("answer.after", LOST_REPLY, lease.task_id), pytest.raises(RedisConnectionError):
        await answer(kit, lease.task_id, qid)
    assert await answer(kit, lease.task_id, qid) == Answered(AnswerStatus.OK, YES)
