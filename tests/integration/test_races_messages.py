"""Races of PROTOCOL 8 that are about messages, notifications and the end of a run; each order is forced at a point."""

import asyncio

from celeriac.common.contract.task import State
from celeriac.common.substrate.types import ClaimRefusal, FinishStatus, ParkStatus, SendStatus
from celeriac.common.testing.points import hold
from celeriac.common.testing.substrate_kit import BROKEN, DONE, Kit, line


async def test_finish_and_a_message_that_arrives_first(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("finish.before", lease.task_id) as held:
        finishing = asyncio.create_task(lease.finish(DONE))
        await held.reached.wait()
        sent = await kit.substrate.inboxes.send_message(lease.task_id, "m", "a", op="o", sender=None)
        held.release()
        assert (await finishing).status is FinishStatus.INBOX
    assert sent.status is SendStatus.QUEUED
    await lease.append([line()], consume=["m:m"])
    assert (await lease.finish(DONE)).status is FinishStatus.OK


async def test_finish_and_a_message_that_arrives_after(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("send_message.before", lease.task_id) as held:
        sending = asyncio.create_task(kit.substrate.inboxes.send_message(lease.task_id, "m", "a", op="o", sender=None))
        await held.reached.wait()
        assert (await lease.finish(DONE)).status is FinishStatus.OK
        held.release()
        sent = await sending
    assert (sent.status, sent.run) == (SendStatus.REOPENED, 2)
    assert await kit.inbox(lease.task_id) == ("m:m",)


async def test_finish_and_a_notification_that_arrives_first(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    child = await kit.claim(await kit.agent(lease), process="w")
    with hold("finish.before", lease.task_id) as held:
        finishing = asyncio.create_task(lease.finish(DONE))
        await held.reached.wait()
        await child.finish(DONE)
        held.release()
        assert (await finishing).status is FinishStatus.INBOX
    assert await kit.inbox(lease.task_id) == (f"n:{child.task_id}:1",)


async def test_a_session_cannot_complete_before_its_childs_notification(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    child = await kit.claim(await kit.agent(lease), process="w")
    with hold("finish.before", child.task_id) as held:
        ending = asyncio.create_task(child.finish(DONE))
        await held.reached.wait()
        assert (await lease.finish(DONE)).status is FinishStatus.CHILDREN
        held.release()
        await ending
    assert (await lease.finish(DONE)).status is FinishStatus.INBOX


async def test_a_client_message_while_the_session_is_stopping_is_refused_then_opens_a_run(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    send = kit.substrate.inboxes.send_message
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="s")
    with hold("finish.before", lease.task_id) as held:
        ending = asyncio.create_task(lease.finish(DONE))
        await held.reached.wait()
        refused = await send(lease.task_id, "m", "a", op="o", sender=None)
        held.release()
        await ending
    assert (refused.status, refused.reason) == (SendStatus.REFUSED, "stopping")
    assert (await send(lease.task_id, "m", "a", op="o", sender=None)).status is SendStatus.REOPENED


async def test_a_failed_session_leaves_its_childrens_notifications_for_a_later_run(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    child = await kit.claim(await kit.agent(lease), process="w")
    with hold("finish.before", child.task_id) as held:
        ending = asyncio.create_task(child.finish(DONE))
        await held.reached.wait()
        await lease.finish(BROKEN)
        held.release()
        assert (await ending).status is FinishStatus.STOPPED
    assert await kit.state(lease.task_id) is State.FAILED  # stored, and it wakes nothing
    assert await kit.substrate.claim(lease.task_id, None, process="p") is ClaimRefusal.DONE
    await kit.substrate.inboxes.send_message(lease.task_id, "m", "go on", op="o", sender=None)
    again = await kit.claim(lease.task_id)
    head = await kit.inbox(lease.task_id)
    assert head == (f"n:{child.task_id}:1", "m:m")
    await again.append([line(run=2)], consume=head)
    assert (await again.finish(DONE)).status is FinishStatus.OK


async def test_park_for_the_inbox_and_an_entry_that_arrives_first(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    child = await kit.claim(await kit.agent(lease), process="w")
    with hold("park.before", lease.task_id) as held:
        parking = asyncio.create_task(lease.park("inbox", "children"))
        await held.reached.wait()
        await child.finish(DONE)
        held.release()
        assert await parking is ParkStatus.INBOX
    assert lease.may_act()


async def test_park_for_the_inbox_and_an_entry_that_arrives_after(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    child = await kit.claim(await kit.agent(lease), process="w")
    with hold("finish.before", child.task_id) as held:
        ending = asyncio.create_task(child.finish(DONE))
        await held.reached.wait()
        assert await lease.park("inbox", "children") is ParkStatus.OK
        assert await kit.substrate.claim(lease.task_id, None, process="p") is ClaimRefusal.PARKED
        held.release()
        await ending
    await kit.claim(lease.task_id)


async def test_a_lost_wake_up_of_a_cleared_park_is_sent_again(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.park("inbox", "children")
    await kit.substrate.inboxes.send_message(agent.task_id, "m", "a", op="o", sender=(lease.task_id, lease.token))
    await kit.wake_long_ago(agent.task_id)
    assert await kit.substrate.records.resend(agent.task_id) is not None


async def test_a_message_waits_in_the_inbox_of_a_task_parked_for_a_time(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    with hold("send_message.before", lease.task_id) as held:
        sending = asyncio.create_task(kit.substrate.inboxes.send_message(lease.task_id, "m", "a", op="o", sender=None))
        await held.reached.wait()
        await lease.park(await kit.substrate.records.server_time_ms() + 60_000, "retry")
        held.release()
        assert (await sending).status is SendStatus.QUEUED
    assert await kit.substrate.claim(lease.task_id, None, process="p") is ClaimRefusal.PARKED
    assert await kit.inbox(lease.task_id) == ("m:m",)


async def test_two_messages_to_an_ended_task_are_one_new_run_with_both_in_order(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    sender = (lease.task_id, lease.token)
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.finish(DONE)
    send = kit.substrate.inboxes.send_message
    with hold("send_message.before", agent.task_id) as held:
        first = asyncio.create_task(send(agent.task_id, "m1", "a", op="o1", sender=sender))
        await held.reached.wait()
        second = await send(agent.task_id, "m2", "b", op="o2", sender=sender)
        held.release()
        late = await first
    assert (second.status, late.status) == (SendStatus.REOPENED, SendStatus.QUEUED)
    assert second.run == late.run == 2
    assert await kit.inbox(agent.task_id) == ("m:m2", "m:m1")


async def test_the_same_message_again_after_a_takeover_is_answered_as_before(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.finish(DONE)
    send = kit.substrate.inboxes.send_message
    with hold("send_message.after", agent.task_id) as held:
        sending = asyncio.create_task(send(agent.task_id, "op1", "a", op="op1", sender=(lease.task_id, lease.token)))
        await held.reached.wait()
        await kit.expire(lease.task_id)
        new = await kit.claim(lease.task_id)
        again = await send(agent.task_id, "op1", "a", op="op1", sender=(new.task_id, new.token))
        held.release()
        assert await sending == again
    assert (again.status, again.run) == (SendStatus.REOPENED, 2)
    assert await kit.inbox(agent.task_id) == ("m:op1",)


async def test_an_agent_ends_only_after_its_shell_and_hears_of_it(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease), process="w")
    shell = await kit.claim(await kit.shell(agent), process="w")
    with hold("finish.before", shell.task_id) as held:
        ending = asyncio.create_task(shell.finish(DONE))
        await held.reached.wait()
        refused = await agent.finish(DONE)
        assert (refused.status, refused.open_tasks) == (FinishStatus.CHILDREN, (shell.task_id,))
        held.release()
        await ending
    assert await kit.inbox(agent.task_id) == (f"n:{shell.task_id}:1",)
    await agent.append([line()], consume=[f"n:{shell.task_id}:1"])
    assert (await agent.finish(DONE)).status is FinishStatus.OK


async def test_a_reopening_beats_a_sweeper_that_looked_before(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    await lease.finish(DONE)
    sessions = kit.substrate.sessions
    version = (await sessions.listed())[lease.task_id]
    with hold("seal.before", lease.task_id) as held:
        sweeping = asyncio.create_task(sessions.seal_and_unlist(lease.task_id, version))
        await held.reached.wait()
        sent = await kit.substrate.inboxes.send_message(lease.task_id, "m", "a", op="o", sender=None)
        held.release()
        assert not await sweeping
    assert sent.status is SendStatus.REOPENED
    assert lease.task_id in await sessions.listed()


async def test_a_reopening_between_seal_and_unlist_stays_listed(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    await lease.finish(DONE)
    sessions = kit.substrate.sessions
    version = (await sessions.listed())[lease.task_id]
    with hold("seal.after", lease.task_id) as held:
        sweeping = asyncio.create_task(sessions.seal_and_unlist(lease.task_id, version))
        await held.reached.wait()
        sent = await kit.substrate.inboxes.send_message(lease.task_id, "m", "a", op="o", sender=None)
        held.release()
        assert not await sweeping
    assert sent.status is SendStatus.REOPENED
    assert lease.task_id in await sessions.listed()


async def test_a_reopening_under_a_sealed_version_lists_again(server_kit: Kit) -> None:
    kit = server_kit
    lease = await kit.owned_session()
    await lease.finish(DONE)
    sessions = kit.substrate.sessions
    with hold("list.after", lease.task_id) as held:
        sending = asyncio.create_task(kit.substrate.inboxes.send_message(lease.task_id, "m", "a", op="o", sender=None))
        await held.reached.wait()
        version = (await sessions.listed())[lease.task_id]
        assert await sessions.seal_and_unlist(lease.task_id, version)
        held.release()
        sent = await sending
    assert sent.status is SendStatus.REOPENED
    assert (await sessions.listed())[lease.task_id] > version
