"""Races of PROTOCOL 8 that are about stops and about who owns a task; each order is forced at a point."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft
from celeriac.common.contract.task import AgentSpec, SessionSpec, State
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import (
    ClaimRefusal,
    Created,
    FinishStatus,
    MarkState,
    SendStatus,
    StopAnswer,
    StopStatus,
)
from celeriac.common.testing.points import fail, hold
from celeriac.common.testing.substrate_kit import DONE, Kit, call, line, new_task, result

Requests = dict[str, Callable[[], Awaitable[object]]]
LOST_REPLY = RedisConnectionError("the reply was lost")


async def stop(kit: Kit, task_id: ids.TaskId, op: str = "stop") -> StopAnswer:
    return await kit.substrate.records.request_stop(task_id, kind="user", reason="enough", op=op)


async def test_a_stop_before_the_finish_turns_it_into_stopped(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("finish.before", lease.task_id) as held:
        finishing = asyncio.create_task(lease.finish(DONE))
        await held.reached.wait()
        assert (await stop(kit, lease.task_id)).status is StopStatus.REQUESTED
        held.release()
        assert (await finishing).status is FinishStatus.STOPPED
    outcome = await kit.substrate.records.outcome(lease.task_id, 1)
    assert outcome is not None
    assert (outcome.state, outcome.text, outcome.partial) == (State.STOPPED, "done", True)


async def test_a_stop_after_the_finish_changes_nothing(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("request_stop.before", lease.task_id) as held:
        stopping = asyncio.create_task(stop(kit, lease.task_id))
        await held.reached.wait()
        await lease.finish(DONE)
        held.release()
        assert await stopping == StopAnswer(StopStatus.FINISHED, State.COMPLETED, 1)
    assert await kit.state(lease.task_id) is State.COMPLETED


@pytest.mark.parametrize("case", ["created", "queued", "parked", "owner dead"])
async def test_a_stop_settles_a_task_without_live_lease_and_the_late_wake_up_finds_it_done(
    server_kit: Kit, case: str
) -> None:
    kit = server_kit
    parent = await kit.owned_session()
    agent = await kit.agent(parent)
    if case == "queued":
        await kit.substrate.records.mark_queued(agent, 1)
    if case in {"parked", "owner dead"}:
        owner = await kit.claim(agent, process="w")
        await (owner.park("inbox", "children") if case == "parked" else kit.expire(agent))
    with hold("claim.before", agent) as held:
        late = asyncio.create_task(kit.substrate.claim(agent, 1, process="w2"))
        await held.reached.wait()
        assert (await stop(kit, agent)).status is StopStatus.STOPPED
        held.release()
        assert await late is ClaimRefusal.DONE
    assert await kit.inbox(parent.task_id) == (f"n:{agent}:1",)


async def test_a_stop_reaches_a_live_owner_with_its_next_write_or_is_settled_when_it_dies(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("append.before", lease.task_id) as held:
        writing = asyncio.create_task(lease.append([line()]))
        await held.reached.wait()
        await stop(kit, lease.task_id)
        held.release()
        assert (await writing).stop is not None
    assert not await kit.substrate.records.settle_stop(lease.task_id)
    await kit.expire(lease.task_id)
    assert await kit.substrate.records.settle_stop(lease.task_id)
    assert await kit.state(lease.task_id) is State.STOPPED
    with pytest.raises(LeaseLost):
        await lease.finish(DONE)


async def test_a_stop_while_a_child_is_being_created(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    task = new_task(ids.child(lease.task_id, Kind.AGENT, "t"), lease.task_id, AgentSpec(prompt="p"))
    with hold("create.before", task.task_id) as held:
        creating = asyncio.create_task(kit.substrate.records.create(task, parent_token=lease.token))
        await held.reached.wait()
        await stop(kit, lease.task_id)
        held.release()
        assert await creating is Created.STOPPING
    born_before = ids.child(lease.task_id, Kind.AGENT, "t")
    assert await kit.substrate.records.find(born_before) is None


async def test_a_stop_just_after_a_child_was_created_covers_it(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    task = new_task(ids.child(lease.task_id, Kind.AGENT, "t"), lease.task_id, AgentSpec(prompt="p"))
    with hold("create.after", task.task_id) as held:
        creating = asyncio.create_task(kit.substrate.records.create(task, parent_token=lease.token))
        await held.reached.wait()
        await stop(kit, lease.task_id)
        held.release()
        assert await creating is Created.CREATED
    assert await kit.substrate.claim(task.task_id, 1, process="w") is ClaimRefusal.STOPPED


async def test_a_stop_while_a_child_is_being_reopened(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.finish(DONE)
    sender = (lease.task_id, lease.token)
    with hold("send_message.before", agent.task_id) as held:
        send = kit.substrate.inboxes.send_message
        sending = asyncio.create_task(send(agent.task_id, "m", "a", op="o", sender=sender))
        await held.reached.wait()
        await stop(kit, lease.task_id)
        held.release()
        assert (await sending).status is SendStatus.REFUSED
    assert await kit.state(agent.task_id) is State.COMPLETED


@pytest.mark.parametrize("stop_first", [True, False])
async def test_a_stop_of_an_ended_task_and_its_reopening(server_kit: Kit, stop_first: bool) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.finish(DONE)
    sender = (lease.task_id, lease.token)
    with hold("request_stop.before" if not stop_first else "send_message.before", agent.task_id) as held:
        if stop_first:
            send = kit.substrate.inboxes.send_message(agent.task_id, "m", "a", op="o", sender=sender)
            waiting = asyncio.create_task(send)
            await held.reached.wait()
            assert (await stop(kit, agent.task_id)).status is StopStatus.FINISHED
            held.release()
            await waiting
            assert await kit.state(agent.task_id) is State.CREATED
            return
        stopping = asyncio.create_task(stop(kit, agent.task_id))
        await held.reached.wait()
        await kit.substrate.inboxes.send_message(agent.task_id, "m", "a", op="o", sender=sender)
        held.release()
        assert (await stopping).status is StopStatus.STOPPED
    record = await kit.substrate.records.get(agent.task_id)
    assert (record.run, record.state) == (2, State.STOPPED)
    first = await kit.substrate.records.outcome(agent.task_id, 1)
    assert first is not None
    assert first.state is State.COMPLETED


async def test_a_child_of_the_stopped_run_stays_stopped_when_the_session_goes_on(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    child = await kit.claim(await kit.agent(lease), process="w")
    await stop(kit, lease.task_id)
    with hold("finish.before", child.task_id) as held:
        ending = asyncio.create_task(child.finish(DONE))
        await held.reached.wait()
        await lease.finish(DONE)
        await kit.substrate.inboxes.send_message(lease.task_id, "m", "go on", op="o", sender=None)
        again = await kit.claim(lease.task_id)
        held.release()
        assert (await ending).status is FinishStatus.STOPPED
    assert again.stop is None
    assert (await again.renew()).stop is None


async def test_a_stop_again_after_a_takeover_is_answered_as_before(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    records = kit.substrate.records
    token = (lease.task_id, lease.token)
    with hold("request_stop.after", agent.task_id) as held:
        request = records.request_stop(agent.task_id, kind="user", reason="r", op="o", sender=token)
        stopping = asyncio.create_task(request)
        await held.reached.wait()
        await agent.finish(DONE)
        await kit.expire(lease.task_id)
        new = await kit.claim(lease.task_id)
        token = (new.task_id, new.token)
        await kit.substrate.inboxes.send_message(agent.task_id, "m", "a", op="o2", sender=token)
        again = await records.request_stop(agent.task_id, kind="user", reason="r", op="o", sender=token)
        held.release()
        assert await stopping == again == StopAnswer(StopStatus.REQUESTED, None, 1)
    assert await kit.state(agent.task_id) is State.CREATED


@pytest.mark.parametrize("name", ["append", "draft", "tool_done", "emit", "ask", "finish", "park", "renew"])
async def test_a_paused_owner_whose_lease_was_taken_writes_nothing(server_kit: Kit, name: str) -> None:
    kit = server_kit
    old = await kit.owned_session()
    writes: Requests = {
        "append": lambda: old.append([line("late")]),
        "draft": lambda: old.draft(Draft(run=1, turn=1, blocks=()), ["t"]),
        "tool_done": lambda: old.tool_done("t", {}),
        "emit": lambda: old.emit(chunks=["late"]),
        "ask": lambda: old.ask("q", {"text": "late"}, 1),
        "finish": lambda: old.finish(DONE, [line("late")]),
        "park": lambda: old.park("inbox", "children"),
        "renew": old.renew,
    }
    with hold(f"{name}.before", old.task_id) as held:
        writing = asyncio.ensure_future(writes[name]())
        await held.reached.wait()
        await kit.expire(old.task_id)
        new = await kit.claim(old.task_id)
        before = await kit.raw(old.task_id)
        held.release()
        with pytest.raises(LeaseLost):
            await writing
    assert await kit.raw(old.task_id) == before
    assert await kit.substrate.transcripts.lines(old.task_id) == ()
    assert await kit.substrate.events.output(old.task_id) == ""
    assert await kit.redis.hlen(kit.keys.session(old.task_id, "ask")) == 0
    assert new.may_act()
    assert not old.may_act()


async def test_resent_late_and_doubled_wake_ups_are_dropped(server_kit: Kit) -> None:
    kit = server_kit
    parent = await kit.owned_session()
    agent = await kit.agent(parent)
    await kit.wake_long_ago(agent)
    assert await kit.substrate.records.resend(agent) is not None
    claims = await asyncio.gather(*(kit.substrate.claim(agent, 1, process=f"w{n}") for n in range(3)))
    owners = [found for found in claims if isinstance(found, Lease)]
    assert len(owners) == 1
    assert claims.count(ClaimRefusal.BUSY) == 2
    await owners[0].finish(DONE)
    assert await kit.substrate.claim(agent, 1, process="w") is ClaimRefusal.DONE
    sender = (parent.task_id, parent.token)
    await kit.substrate.inboxes.send_message(agent, "m", "a", op="o", sender=sender)
    assert await kit.substrate.claim(agent, 1, process="w") is ClaimRefusal.STALE


async def test_a_supervisor_that_looked_before_a_claim_sends_nothing(server_kit: Kit) -> None:
    kit = server_kit
    parent = await kit.owned_session()
    agent = await kit.agent(parent)
    await kit.wake_long_ago(agent)
    with hold("resend.before", agent) as held:
        sending = asyncio.create_task(kit.substrate.records.resend(agent))
        await held.reached.wait()
        await kit.claim(agent, process="w")
        held.release()
        assert await sending is None
    assert await kit.state(agent) is State.RUNNING


@pytest.mark.parametrize("point", ["create.before", "create.after"])
async def test_a_coordinator_that_dies_around_create_is_repeated_by_its_successor(server_kit: Kit, point: str) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    await lease.append([call("t1", name="AgentTool")])
    task = new_task(ids.child(lease.task_id, Kind.AGENT, "t1"), lease.task_id, AgentSpec(prompt="p"))
    with hold(point, task.task_id) as held:
        creating = asyncio.create_task(kit.substrate.records.create(task, parent_token=lease.token))
        await held.reached.wait()
        creating.cancel()  # the process is gone
        await asyncio.gather(creating, return_exceptions=True)
    await kit.expire(lease.task_id)
    new = await kit.claim(lease.task_id)
    assert new.tlen == 1
    created = await kit.substrate.records.create(task, parent_token=new.token)
    assert created is (Created.CREATED if point == "create.before" else Created.EXISTS)
    await new.append([result("t1")])
    assert len(await kit.substrate.records.tree(lease.task_id)) == 2


async def test_a_coordinator_that_dies_before_its_assistant_message_left_nothing(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("append.before", lease.task_id) as held:
        writing = asyncio.create_task(lease.append([call("t1", name="AgentTool")]))
        await held.reached.wait()
        await kit.expire(lease.task_id)
        new = await kit.claim(lease.task_id)
        held.release()
        with pytest.raises(LeaseLost):
            await writing
    assert (new.tlen, new.grant.draft) == (0, None)
    assert len(await kit.substrate.records.tree(lease.task_id)) == 1


@pytest.mark.parametrize("what", ["create", "send_message", "request_stop"])
async def test_a_paused_coordinator_dispatches_sends_and_stops_nothing_late(server_kit: Kit, what: str) -> None:
    kit = server_kit
    old = await kit.owned_session()
    agent = await kit.agent(old)
    token = (old.task_id, old.token)
    task = new_task(ids.child(old.task_id, Kind.AGENT, "late"), old.task_id, AgentSpec(prompt="p"))
    records, inboxes = kit.substrate.records, kit.substrate.inboxes
    requests: Requests = {
        "create": lambda: records.create(task, parent_token=old.token),
        "send_message": lambda: inboxes.send_message(agent, "m", "a", op="o", sender=token),
        "request_stop": lambda: records.request_stop(agent, kind="user", reason="r", op="o", sender=token),
    }
    with hold(f"{what}.before") as held:
        asking = asyncio.ensure_future(requests[what]())
        await held.reached.wait()
        await kit.expire(old.task_id)
        await kit.claim(old.task_id)
        held.release()
        with pytest.raises(LeaseLost):
            await asking
    assert await records.find(task.task_id) is None
    assert (await kit.inbox(agent), await kit.state(agent)) == ((), State.CREATED)


async def test_a_session_that_is_stopped_stops_the_children_that_still_run(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    child = await kit.claim(await kit.agent(lease), process="w")
    queued = await kit.agent(lease, "t2")
    await stop(kit, lease.task_id)
    with hold("finish.before", lease.task_id) as held:
        ending = asyncio.create_task(lease.finish(DONE))
        await held.reached.wait()
        held.release()
        assert (await ending).status is FinishStatus.STOPPED
    assert await kit.substrate.records.settle_stop(queued)
    assert (await child.finish(DONE)).status is FinishStatus.STOPPED
    assert await kit.state(lease.task_id) is State.STOPPED
    assert set(await kit.inbox(lease.task_id)) == {f"n:{queued}:1", f"n:{child.task_id}:1"}


async def test_a_stop_settles_a_task_parked_for_a_time_at_once(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("request_stop.before", lease.task_id) as held:
        stopping = asyncio.create_task(stop(kit, lease.task_id))
        await held.reached.wait()
        await lease.park(await kit.substrate.records.server_time_ms() + 60_000, "retry")
        held.release()
        assert (await stopping).status is StopStatus.STOPPED


async def test_a_started_call_of_a_stopped_run_is_known_to_the_next_run(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    draft = Draft(run=1, turn=1, blocks=call("t1").content)
    with hold("draft.after", lease.task_id) as held:
        drafting = asyncio.create_task(lease.draft(draft, ["t1"]))
        await held.reached.wait()
        await stop(kit, lease.task_id)
        held.release()
        await drafting
    await kit.expire(lease.task_id)
    await kit.substrate.records.settle_stop(lease.task_id)
    await kit.substrate.inboxes.send_message(lease.task_id, "m", "go on", op="o", sender=None)
    again = await kit.claim(lease.task_id)
    assert again.grant.draft == draft
    assert again.grant.draft.run < again.run  # so repair answers it and starts nothing
    assert (await kit.substrate.transcripts.marks(lease.task_id))["t1"].state is MarkState.STARTED


async def test_two_submits_with_one_key_are_one_session(server_kit: Kit) -> None:
    kit = server_kit
    session = ids.session_for("default", ids.nonce())
    task = new_task(session, None, SessionSpec(prompt="one"))
    other = new_task(session, None, SessionSpec(prompt="two"))
    with hold("create.before", session) as held:
        first = asyncio.create_task(kit.substrate.records.create(task, parent_token=None))
        await held.reached.wait()
        assert await kit.substrate.records.create(task, parent_token=None) is Created.CREATED
        assert await kit.substrate.records.create(other, parent_token=None) is Created.MISMATCH
        held.release()
        assert await first is Created.EXISTS


async def test_several_coordinators_claim_one_session_and_one_gets_it(server_kit: Kit) -> None:
    kit = server_kit
    session = await kit.session()
    with hold("claim.before", session) as held:
        first = asyncio.create_task(kit.substrate.claim(session, None, process="p1"))
        await held.reached.wait()
        await kit.claim(session, process="p2")
        held.release()
        assert await first is ClaimRefusal.BUSY


@pytest.mark.parametrize(
    "name", ["claim", "create", "send_message", "request_stop", "draft", "append", "finish", "park"]
)
async def test_a_lost_reply_is_asked_for_again_and_nothing_happens_twice(server_kit: Kit, name: str) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    records = kit.substrate.records
    token = (lease.task_id, lease.token)
    if name == "claim":
        with fail("claim.after", LOST_REPLY, agent):
            owner = await kit.claim(agent, process="w")
        assert (owner.token.partition("/")[0], (await records.get(agent)).fence) == ("1", 1)
    elif name in {"create", "send_message", "request_stop"}:
        await _ask_twice(kit, name, agent, token)
    else:
        owner = await kit.claim(agent, process="w")
        with fail(f"{name}.after", LOST_REPLY, agent):
            writes: Requests = {
                "draft": lambda: owner.draft(Draft(run=1, turn=1, blocks=()), ["t"]),
                "append": lambda: owner.append([line()]),
                "finish": lambda: owner.finish(DONE, [line()]),
                "park": lambda: owner.park("inbox", "children"),
            }
            await writes[name]()
        assert (await records.get(agent)).tlen == (0 if name in {"draft", "park"} else 1)
        assert not owner.node.aborted


async def _ask_twice(kit: Kit, name: str, agent: ids.TaskId, token: tuple[ids.TaskId, str]) -> None:
    """These name their request themselves: the caller repeats it with the same id."""
    records, inboxes = kit.substrate.records, kit.substrate.inboxes
    task = new_task(ids.child(token[0], Kind.AGENT, "new"), token[0], AgentSpec(prompt="p"))
    requests: Requests = {
        "create": lambda: records.create(task, parent_token=token[1]),
        "send_message": lambda: inboxes.send_message(agent, "m", "a", op="o", sender=token),
        "request_stop": lambda: records.request_stop(agent, kind="user", reason="r", op="o", sender=token),
    }
    with fail(f"{name}.after", LOST_REPLY), pytest.raises(RedisConnectionError):
        await requests[name]()
    await requests[name]()
    parent = await records.get(token[0])
    assert parent.open_children == {"create": 2, "send_message": 1, "request_stop": 0}[name]
    assert len(await kit.inbox(token[0])) == (1 if name == "request_stop" else 0)
    assert len(await kit.inbox(agent)) == (1 if name == "send_message" else 0)
