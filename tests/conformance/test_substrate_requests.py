"""send_message, request_stop, settle_stop: requests from outside the task (PROTOCOL 3), and hints, events, replays."""

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.events import AssistantEvent, ResultEvent, StreamEvent, SystemEvent, UserEvent
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Limits, State
from celeriac.common.substrate.events import START
from celeriac.common.substrate.types import EntryKind, RunRef, SendStatus, StopAnswer, StopStatus, Wake
from celeriac.common.testing.substrate_kit import BROKEN, DONE, Kit, line


async def test_a_message_to_a_running_task_waits_in_order_and_hints_its_owner(kit: Kit) -> None:
    lease = await kit.owned_session()
    send = kit.substrate.inboxes.send_message
    first = await send(lease.task_id, "m1", 'a "ü', op="o1", sender=None)
    await send(lease.task_id, "m2", "b", op="o2", sender=None)
    assert (first.status, first.run, first.wake) == (SendStatus.QUEUED, 1, None)
    entries = await kit.substrate.inboxes.unread(lease.task_id)
    assert [(entry.id, entry.kind, entry.text, entry.sender) for entry in entries] == [
        ("m:m1", EntryKind.MESSAGE, 'a "ü', "user"),
        ("m:m2", EntryKind.MESSAGE, "b", "user"),
    ]
    assert await kit.substrate.hints.wait("coordinator-1", sessions=False, timeout_s=2) == lease.task_id


async def test_the_same_op_gets_the_stored_answer(kit: Kit) -> None:
    lease = await kit.owned_session()
    send = kit.substrate.inboxes.send_message
    first = await send(lease.task_id, "m1", "a", op="o1", sender=None)
    await lease.append([line()], consume=["m:m1"])
    await lease.finish(DONE)
    assert await send(lease.task_id, "m1", "a", op="o1", sender=None) == first
    assert await kit.state(lease.task_id) is State.COMPLETED
    await send(lease.task_id, "m1", "a", op="o9", sender=None)  # also under another op a message exists once
    assert await kit.inbox(lease.task_id) == ()


async def test_a_message_to_an_ended_task_opens_its_next_run(kit: Kit) -> None:
    lease = await kit.owned_session()
    sender = (lease.task_id, lease.token)
    agent = await kit.agent(lease, limits=Limits(seconds=60))
    owner = await kit.claim(agent, process="w")
    await owner.append([line()])
    await owner.finish(DONE)
    await kit.field(agent, "deadline", "1")
    sent = await kit.substrate.inboxes.send_message(agent, "m1", "more", op="o1", sender=sender)
    assert (sent.status, sent.run, sent.wake) == (SendStatus.REOPENED, 2, Wake(agent, 2, 0))
    record = await kit.substrate.records.get(agent)
    assert (record.state, record.run, record.outcome, record.tlen) == (State.CREATED, 2, None, 1)
    assert (await lease.renew()).open_children == 1
    assert int((await kit.raw(agent))["deadline"]) > record.times.created
    assert await kit.substrate.claim(agent, 1, process="w") == "STALE"
    again = await kit.claim(agent, run=2)
    assert (again.token.partition("/")[0], again.tlen) == ("2", 1)
    entry = (await kit.substrate.inboxes.unread(agent))[0]
    assert (entry.text, entry.sender) == ("more", lease.task_id)


async def test_who_takes_no_messages(kit: Kit) -> None:
    lease = await kit.owned_session()
    sender = (lease.task_id, lease.token)
    send = kit.substrate.inboxes.send_message
    unknown = await send(ids.child(lease.task_id, Kind.AGENT, "?"), "m", "a", op="o1", sender=sender)
    assert (unknown.status, unknown.reason) == (SendStatus.REFUSED, "unknown task")
    shell = await kit.claim(await kit.shell(lease), process="w")
    await shell.finish(DONE)
    ended = await send(shell.task_id, "m", "a", op="o2", sender=sender)
    assert (ended.status, ended.reason) == (SendStatus.REFUSED, "the command has ended")
    agent = await kit.claim(await kit.agent(lease), process="w")
    await kit.substrate.records.request_stop(agent.task_id, kind="user", reason="r", op="s1")
    stopping = await send(agent.task_id, "m", "a", op="o3", sender=sender)
    assert (stopping.status, stopping.reason) == (SendStatus.REFUSED, "stopping")
    await agent.finish(DONE)
    assert (await send(agent.task_id, "m", "a", op="o3", sender=sender)).status is SendStatus.REOPENED
    await lease.finish(BROKEN)
    late = await send(agent.task_id, "m2", "a", op="o4", sender=None)
    assert (late.status, late.reason) == (SendStatus.REFUSED, "its parent has ended")


async def test_a_sender_that_lost_its_lease_sends_and_stops_nothing(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    await kit.expire(lease.task_id)
    await kit.claim(lease.task_id)
    old = (lease.task_id, lease.token)
    with pytest.raises(LeaseLost):
        await kit.substrate.inboxes.send_message(agent, "m", "a", op="o1", sender=old)
    with pytest.raises(LeaseLost):
        await kit.substrate.records.request_stop(agent, kind="user", reason="r", op="o2", sender=old)
    assert await kit.inbox(agent) == ()
    assert await kit.state(agent) is State.CREATED


async def test_a_message_wakes_a_parked_agent(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.park("inbox", "children")
    sender = (lease.task_id, lease.token)
    sent = await kit.substrate.inboxes.send_message(agent.task_id, "m", "a", op="o", sender=sender)
    assert (sent.status, sent.wake) == (SendStatus.QUEUED, Wake(agent.task_id, 1, 1))
    await kit.claim(agent.task_id, run=1)


async def test_a_message_does_not_wake_a_task_parked_for_a_time(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.park(await kit.substrate.records.server_time_ms() + 60_000, "retry")
    sent = await kit.substrate.inboxes.send_message(lease.task_id, "m", "a", op="o", sender=None)
    assert sent.status is SendStatus.QUEUED
    assert (await kit.substrate.records.get(lease.task_id)).park is not None


async def test_stopping_a_task_that_nobody_works_on_ends_it_at_once(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    answer = await kit.substrate.records.request_stop(agent, kind="user", reason="enough", op="o")
    assert answer == StopAnswer(StopStatus.STOPPED, State.STOPPED, 1)
    assert await kit.inbox(lease.task_id) == (f"n:{agent}:1",)
    again = await kit.substrate.records.request_stop(agent, kind="user", reason="enough", op="o")
    assert again == answer
    later = await kit.substrate.records.request_stop(agent, kind="user", reason="enough", op="o2")
    assert later == StopAnswer(StopStatus.FINISHED, State.STOPPED, 1)


async def test_a_limit_stop_of_a_free_task_fails_it(kit: Kit) -> None:
    session = await kit.session(limits=Limits(seconds=0.001))
    await kit.field(session, "deadline", "1")
    assert await kit.substrate.records.overdue(session) == (RunRef(session, 1),)
    await kit.substrate.records.request_stop(session, kind="limit", reason="time limit", op="o", run=1)
    record = await kit.substrate.records.get(session)
    assert record.state is State.FAILED
    assert record.outcome is not None
    assert record.outcome.reason == "time limit"
    assert await kit.substrate.records.overdue(session) == ()


async def test_stopping_an_owned_task_is_a_request_and_the_first_one_says_why(kit: Kit) -> None:
    lease = await kit.owned_session()
    stop = kit.substrate.records.request_stop
    assert (await stop(lease.task_id, kind="user", reason="first", op="o1")).status is StopStatus.REQUESTED
    assert (await stop(lease.task_id, kind="limit", reason="second", op="o2")).status is StopStatus.REQUESTED
    assert await kit.substrate.hints.wait("coordinator-1", sessions=False, timeout_s=2) == lease.task_id
    assert not await kit.substrate.records.settle_stop(lease.task_id)
    found = (await kit.substrate.records.get(lease.task_id)).stop
    assert found is not None
    assert (found.kind, found.reason) == ("user", "first")
    await kit.expire(lease.task_id)
    assert await kit.substrate.records.settle_stop(lease.task_id)
    assert await kit.state(lease.task_id) is State.STOPPED
    assert not await kit.substrate.records.settle_stop(lease.task_id)


async def test_a_stop_of_the_root_pokes_and_covers_the_whole_subtree(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w1")
    shell = await kit.claim(await kit.shell(agent), process="w2")
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="o")
    assert await kit.substrate.hints.wait("w1", sessions=False, timeout_s=2) == agent.task_id
    assert await kit.substrate.hints.wait("w2", sessions=False, timeout_s=2) == shell.task_id
    assert (await shell.renew()).stop is not None
    assert (await kit.substrate.records.get(shell.task_id)).stop is not None


async def test_a_repeated_stop_never_hits_a_run_opened_later(kit: Kit) -> None:
    lease = await kit.owned_session()
    sender = (lease.task_id, lease.token)
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.finish(DONE)
    stop = kit.substrate.records.request_stop
    first = await stop(agent.task_id, kind="user", reason="r", op="o", sender=sender)
    assert first == StopAnswer(StopStatus.FINISHED, State.COMPLETED, 1)
    await kit.substrate.inboxes.send_message(agent.task_id, "m", "a", op="o2", sender=sender)
    assert await stop(agent.task_id, kind="user", reason="r", op="o", sender=sender) == first
    assert (await stop(agent.task_id, kind="limit", reason="r", op="o3", run=1)).status is StopStatus.FINISHED
    assert await kit.state(agent.task_id) is State.CREATED


async def test_an_unknown_task_cannot_be_stopped(kit: Kit) -> None:
    answer = await kit.substrate.records.request_stop(ids.new_session(), kind="user", reason="r", op="o")
    assert answer == StopAnswer(StopStatus.UNKNOWN)


async def test_events_tell_everything_in_order_with_its_content(kit: Kit) -> None:
    lease = await kit.owned_session()
    read = kit.substrate.events.read
    await lease.append([line("q"), line("a", role="assistant")])
    await lease.emit(event={"type": "system", "subtype": "init", "data": {"model": "m"}})
    await lease.emit(event={"type": "stream_event", "event": {"type": "ping"}})
    await lease.finish(DONE)
    entries = [entry for _, entry in await read(lease.task_id, START, block_ms=None)]
    events = [await kit.substrate.events.expand(entry) for entry in entries]
    kinds = [type(event) for event in events]
    assert kinds == [SystemEvent] * 3 + [UserEvent, AssistantEvent, SystemEvent, StreamEvent, SystemEvent, ResultEvent]
    states = [event.data["state"] for event in events if isinstance(event, SystemEvent) and event.subtype == "status"]
    assert states == ["created", "queued", "running", "completed"]
    end = events[-1]
    assert isinstance(end, ResultEvent)
    assert (end.result, end.state, end.worker, end.session_id) == ("done", "completed", "coordinator-1", lease.task_id)
    assert len({entry.id for entry in entries}) == len(entries)
    last = await kit.substrate.events.last_id(lease.task_id)
    assert await read(lease.task_id, last, block_ms=20) == ()
    assert len(await read(lease.task_id, entries[5].id, block_ms=20)) == len(entries) - 6


async def test_a_wait_for_hints_ends_with_its_time(kit: Kit) -> None:
    assert await kit.substrate.hints.wait("nobody", sessions=True, timeout_s=0.05) is None


async def test_replays_and_attempts_are_kept_with_the_session(kit: Kit) -> None:
    session = await kit.session()
    replays = kit.substrate.replays
    assert await replays.load(session) is None
    await replays.store(session, "{}\n")
    assert await replays.load(session) == "{}\n"
    assert await replays.next_attempt(session, "s/2:1.0", 1, 2) == 1
    assert await replays.next_attempt(session, "s/2:1.0", 1, 2) == 2
    assert await replays.next_attempt(session, "s", 1, 1) == 1
    assert await replays.attempts(session) == {("s/2:1.0", 1, 2): 2, ("s", 1, 1): 1}


async def test_the_server_answers_a_ping(kit: Kit) -> None:
    await kit.substrate.ping()
