"""claim, renew, park, resend: who owns a task, and when (PROTOCOL 3)."""

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost, ScriptRefused
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import ClaimRefusal, EntryKind, ParkStatus, Resend
from celeriac.common.testing.substrate_kit import DONE, Kit, line


async def test_a_claim_gives_a_token_and_the_task_runs(kit: Kit) -> None:
    lease = await kit.owned_session()
    record = await kit.substrate.records.get(lease.task_id)
    assert record.state is State.RUNNING
    assert record.lease is not None
    assert (record.lease.owner, record.lease.process) == (lease.token, "coordinator-1")
    assert (lease.run, lease.tlen, lease.grant.draft, record.fence) == (1, 0, None, 1)
    assert lease.token.startswith("1/")
    assert lease.may_act()


async def test_refusals_of_a_claim(kit: Kit) -> None:
    claim = kit.substrate.claim
    session = await kit.session()
    assert await claim(ids.new_session(), None, process="p") is ClaimRefusal.NOREC
    assert await claim(session, 2, process="p") is ClaimRefusal.STALE
    lease = await kit.claim(session, run=1)
    assert await claim(session, 1, process="p") is ClaimRefusal.BUSY
    agent = await kit.agent(lease)
    await lease.park(await kit.substrate.records.server_time_ms() + 60_000, "retry")
    assert await claim(session, None, process="p") is ClaimRefusal.PARKED
    owner = await kit.claim(agent)
    await owner.finish(DONE)
    assert await claim(agent, 1, process="p") is ClaimRefusal.DONE
    with pytest.raises(ScriptRefused):
        await claim(session, None, process="p", nonce='"/')


async def test_the_same_nonce_gets_the_same_answer_again(kit: Kit) -> None:
    session = await kit.session()
    first = await kit.substrate.claim(session, None, process="p", nonce="n1")
    again = await kit.substrate.claim(session, None, process="p", nonce="n1")
    assert isinstance(first, Lease)
    assert isinstance(again, Lease)
    assert first.token == again.token == "1/n1"
    assert (await kit.substrate.records.get(session)).fence == 1


async def test_a_claim_of_a_stopped_run_settles_it(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="enough", op="o")
    assert await kit.substrate.claim(agent, 1, process="w") is ClaimRefusal.STOPPED
    assert await kit.state(agent) is State.STOPPED
    assert await kit.inbox(lease.task_id) == (f"n:{agent}:1",)


async def test_an_expired_lease_is_taken_and_the_old_owner_is_lost(kit: Kit) -> None:
    old = await kit.owned_session()
    await kit.expire(old.task_id)
    await old.renew()  # still the owner: nobody claimed
    await kit.expire(old.task_id)
    new = await kit.claim(old.task_id)
    assert new.token.startswith("2/")
    assert (await kit.substrate.records.get(old.task_id)).attempt == 1
    with pytest.raises(LeaseLost):
        await old.renew()
    assert old.node.reason is AbortReason.LEASE_LOST
    assert not old.may_act()
    with pytest.raises(LeaseLost):
        await old.append([line()])


async def test_too_many_losses_without_progress_end_the_task_as_poison(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    for _ in range(5):
        await kit.claim(agent)
        await kit.expire(agent)
    assert await kit.substrate.claim(agent, 1, process="w") is ClaimRefusal.POISON
    record = await kit.substrate.records.get(agent)
    assert record.state is State.FAILED
    assert record.outcome is not None
    assert record.outcome.reason == "poison"
    assert await kit.inbox(lease.task_id) == (f"n:{agent}:1",)


async def test_progress_forgives_losses_but_the_total_counts(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    for _ in range(21):
        owner = await kit.claim(agent)
        await owner.append([line(role="assistant"), line()])
        await kit.expire(agent)
    assert (await kit.substrate.records.get(agent)).attempt == 0
    last = await kit.claim(agent)
    await last.append([line(role="assistant")], progress=False)
    assert (await kit.substrate.records.get(agent)).attempt == 1
    await kit.expire(agent)
    assert await kit.substrate.claim(agent, 1, process="w") is ClaimRefusal.POISON


async def test_release_hands_over_at_once_without_an_attempt(kit: Kit) -> None:
    lease = await kit.owned_session()
    assert await lease.release() is ParkStatus.OK
    assert lease.ended
    assert not lease.node.aborted
    record = await kit.substrate.records.get(lease.task_id)
    assert record.park is not None
    assert (record.state, record.park.why, record.lease, record.attempt) == (State.QUEUED, "closing", None, 0)
    assert await kit.substrate.records.resend(lease.task_id) == Resend(run=1, attempt=1)
    await kit.claim(lease.task_id)


async def test_park_for_the_inbox_is_refused_while_something_is_unread(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.substrate.inboxes.send_message(lease.task_id, "m1", "hi", op="o1", sender=None)
    assert await lease.park("inbox", "children") is ParkStatus.INBOX
    assert lease.may_act()
    await lease.append([line()], consume=["m:m1"])
    assert await lease.park("inbox", "children") is ParkStatus.OK
    assert await kit.substrate.claim(lease.task_id, None, process="p") is ClaimRefusal.PARKED
    await kit.wake_long_ago(lease.task_id)
    assert await kit.substrate.records.resend(lease.task_id) is None


async def test_park_is_refused_while_stopping_and_needs_a_time_for_an_answer(kit: Kit) -> None:
    lease = await kit.owned_session()
    with pytest.raises(ScriptRefused):
        await lease.park("answer:q1", "human")
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="o")
    assert await lease.park("inbox", "children") is ParkStatus.STOP


async def test_a_timed_park_for_the_inbox_ends_at_its_time(kit: Kit) -> None:
    lease = await kit.owned_session()
    await lease.park("inbox", "human", at_ms=1)
    assert await kit.substrate.records.resend(lease.task_id) is None  # woken after its time was over already
    await kit.wake_long_ago(lease.task_id)
    assert await kit.substrate.records.resend(lease.task_id) == Resend(run=1, attempt=1)
    await kit.claim(lease.task_id)


async def test_resend_backs_off_and_one_supervisor_wins(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    resend = kit.substrate.records.resend
    assert await resend(agent) is None  # the dispatcher has only just sent one
    now = await kit.substrate.records.server_time_ms()
    await kit.field(agent, "wake_at", str(now - 2_500))
    assert await resend(agent) == Resend(run=1, attempt=1)
    assert await resend(agent) is None
    assert await kit.state(agent) is State.QUEUED
    await kit.field(agent, "wake_at", str(now - 2_500))
    assert await resend(agent) is None  # 4 s by now
    await kit.field(agent, "wake_n", "9")
    await kit.field(agent, "wake_at", str(now - 31_000))
    assert await resend(agent) == Resend(run=1, attempt=2)
    await kit.claim(agent)
    assert (await kit.raw(agent))["wake_n"] == "0"
    await kit.wake_long_ago(agent)
    assert await resend(agent) is None  # owned


async def test_a_lost_owner_is_reported_once_and_its_return_too(kit: Kit) -> None:
    lease = await kit.owned_session()
    owner = await kit.claim(await kit.agent(lease), process="w")
    agent = owner.task_id
    await kit.expire(agent)
    await kit.field(agent, "wake_at", "0")
    assert await kit.substrate.records.resend(agent) == Resend(run=1, attempt=1)
    assert await kit.inbox(lease.task_id) == (f"l:{agent}:1",)
    assert (await lease.renew()).unread == 0
    await owner.renew()
    assert await kit.state(agent) is State.RUNNING
    assert await kit.inbox(lease.task_id) == (f"l:{agent}:1", f"b:{agent}:1")
    await kit.expire(agent)
    await kit.wake_long_ago(agent)
    await kit.field(agent, "wake_at", "0")
    await kit.substrate.records.resend(agent)
    await kit.claim(agent, process="w2")
    entries = await kit.substrate.inboxes.unread(lease.task_id)
    assert [entry.kind for entry in entries] == [EntryKind.LOST, EntryKind.BACK]
    assert await lease.park("inbox", "children") is ParkStatus.OK  # they count for no INBOX


async def test_a_claim_after_a_reported_loss_reports_the_return(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    await kit.claim(agent, process="w")
    await kit.expire(agent)
    await kit.field(agent, "wake_at", "0")
    await kit.substrate.records.resend(agent)
    await kit.claim(agent, process="w2")
    assert await kit.inbox(lease.task_id) == (f"l:{agent}:1", f"b:{agent}:1")


async def test_resend_of_the_unknown_the_ended_and_the_stopped(kit: Kit) -> None:
    lease = await kit.owned_session()
    resend = kit.substrate.records.resend
    assert await resend(ids.child(lease.task_id, Kind.AGENT, "unknown")) is None
    agent = await kit.agent(lease)
    await kit.wake_long_ago(agent)
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="o")
    assert await resend(agent) is None
    assert await kit.state(agent) is State.STOPPED
    assert await resend(agent) is None


async def test_a_line_that_only_passes_the_inbox_on_is_no_progress(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.expire(lease.task_id)
    again = await kit.claim(lease.task_id)
    await again.append([line("prompt")])
    assert (await kit.substrate.records.get(lease.task_id)).attempt == 1
    await again.append([line("answer", role="assistant")])
    assert (await kit.substrate.records.get(lease.task_id)).attempt == 0
