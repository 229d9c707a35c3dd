"""How a run is heard of: on the record, and as events for followers that tell each change once."""

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.presence import Presence
from celeriac.common.substrate.events import START
from celeriac.common.substrate.types import ParkStatus
from celeriac.common.testing.substrate_kit import DONE, Kit, line


async def told(kit: Kit, task_id: TaskId) -> list[str]:
    """The presences that followers were told of."""
    entries = await kit.substrate.events.read(task_id, START, block_ms=None)
    data = (entry.data.get("data") for _, entry in entries if entry.task_id == task_id and entry.type == "system")
    return [str(found["presence"]) for found in data if isinstance(found, dict) and "presence" in found]


async def presence(kit: Kit, task_id: TaskId) -> Presence | None:
    return (await kit.substrate.records.get(task_id)).presence


async def quiet(kit: Kit, task_id: TaskId) -> None:
    """As if the last token, tool output and claim were long ago."""
    for name in ("claimed_at", "token_at", "tool_at"):
        await kit.field(task_id, name, "1")


async def test_a_task_nobody_has_claimed_has_no_presence_and_a_claimed_one_is_alive(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    assert await presence(kit, agent) is None
    await kit.claim(agent, process="w")
    assert await presence(kit, agent) is Presence.ALIVE
    assert await told(kit, agent) == []


async def test_a_renewal_without_progress_tells_the_silence_once_and_progress_its_end(kit: Kit) -> None:
    lease = await kit.owned_session()
    await quiet(kit, lease.task_id)
    assert await presence(kit, lease.task_id) is Presence.SILENT
    await lease.renew()
    await lease.renew()
    assert await told(kit, lease.task_id) == ["silent"]
    await lease.emit(chunks=["a token"], token_at=True)
    assert await presence(kit, lease.task_id) is Presence.ALIVE
    await lease.emit(activities=["a call"], tool_at=True)
    assert await told(kit, lease.task_id) == ["silent", "alive"]


async def test_a_committed_answer_ends_a_silence(kit: Kit) -> None:
    lease = await kit.owned_session()
    await quiet(kit, lease.task_id)
    await lease.renew()
    await lease.append([line(role="assistant")])
    assert await presence(kit, lease.task_id) is Presence.ALIVE
    assert await told(kit, lease.task_id) == ["silent", "alive"]


async def test_a_session_that_waits_for_its_tasks_is_not_silent(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.agent(lease)
    await quiet(kit, lease.task_id)
    await lease.renew()
    assert await presence(kit, lease.task_id) is Presence.ALIVE
    assert await told(kit, lease.task_id) == []


async def test_an_expired_lease_is_lost_until_it_is_claimed(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    await kit.claim(agent, process="w")
    await kit.expire(agent)
    assert await presence(kit, agent) is Presence.LOST
    await kit.wake_long_ago(agent)
    assert await kit.substrate.records.resend(agent) is not None
    assert await kit.substrate.records.resend(agent) is None
    await kit.claim(agent, process="w2")
    assert await presence(kit, agent) is Presence.ALIVE
    assert await told(kit, agent) == ["lost", "alive"]
    texts = [entry.text for entry in await kit.substrate.inboxes.unread(lease.task_id)]
    assert [agent in text for text in texts] == [True, True], "the parent is told of both"


async def test_an_owner_that_was_only_slow_is_back_by_its_own_renewal(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.expire(lease.task_id)
    await kit.wake_long_ago(lease.task_id)
    await kit.substrate.records.resend(lease.task_id)
    await lease.renew()
    await lease.renew()
    assert await told(kit, lease.task_id) == ["lost", "alive"]
    assert await presence(kit, lease.task_id) is Presence.ALIVE


async def test_parks_are_told_and_a_release_is_none(kit: Kit) -> None:
    lease = await kit.owned_session()
    assert await lease.park("inbox", "children") is ParkStatus.OK
    assert await presence(kit, lease.task_id) is Presence.PARKED
    await kit.substrate.inboxes.send_message(lease.task_id, "m1", "go on", op="o1", sender=None)
    assert await presence(kit, lease.task_id) is None
    again = await kit.claim(lease.task_id)
    await again.release()
    assert await presence(kit, lease.task_id) is None
    third = await kit.claim(lease.task_id)
    await third.append([line(inbox_ids=["m:m1"])], consume=["m:m1"])
    await third.append([line()], asked=True)
    assert await third.park("inbox", "human") is ParkStatus.OK
    assert await presence(kit, lease.task_id) is Presence.WAITING_HUMAN
    assert await told(kit, lease.task_id) == ["parked", "waiting_human"]


async def test_a_park_for_an_answer_waits_for_a_person_whatever_it_says_of_itself(kit: Kit) -> None:
    lease = await kit.owned_session()
    deadline = await kit.later()
    await lease.ask("q1", {"text": "may I?"}, deadline)
    assert await lease.park("answer:q1", "permission", at_ms=deadline) is ParkStatus.OK
    assert await presence(kit, lease.task_id) is Presence.WAITING_HUMAN
    assert await told(kit, lease.task_id) == ["waiting_human"]


async def test_a_new_run_begins_without_the_silence_of_the_last(kit: Kit) -> None:
    lease = await kit.owned_session()
    await quiet(kit, lease.task_id)
    await lease.renew()
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="enough", op="o1")
    await kit.expire(lease.task_id)
    assert await kit.substrate.records.settle_stop(lease.task_id)
    assert await presence(kit, lease.task_id) is None
    await kit.substrate.inboxes.send_message(lease.task_id, "m1", "again", op="o2", sender=None)
    await kit.claim(lease.task_id)
    assert await presence(kit, lease.task_id) is Presence.ALIVE


async def test_a_stop_of_a_lost_task_is_not_confirmed_and_of_a_living_or_waiting_one_it_is(kit: Kit) -> None:
    lease = await kit.owned_session()
    lost, waiting, living = [await kit.agent(lease, f"toolu_{n}") for n in range(3)]
    await kit.claim(lost, process="w")
    owner = await kit.claim(living, process="w")
    await kit.expire(lost)
    for task_id in (lost, waiting, living):
        await kit.substrate.records.request_stop(task_id, kind="user", reason="enough", op=f"op {task_id}")
    await owner.finish(DONE)
    stops = {task_id: (await kit.substrate.records.get(task_id)).stop for task_id in (lost, waiting, living)}
    assert {task_id: stop.confirmed for task_id, stop in stops.items() if stop} == {
        lost: False,
        waiting: True,
        living: True,
    }
