"""A supervisor's look holds back nothing that a script would act on, and calls no lease expired too early."""

import pytest
from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.substrate.lookout import Seen
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import ParkStatus
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.substrate_kit import Kit


async def seen(kit: Kit, task_id: TaskId) -> Seen:
    found = await kit.substrate.lookout.look([ids.session_of(task_id)])
    return next(task for task in found if task.task_id == task_id)


async def agent(kit: Kit) -> TaskId:
    return await kit.agent(await kit.owned_session())


@pytest.mark.parametrize("sent", range(8))
@pytest.mark.parametrize("age_ms", [1500, 2500, 5000, 10_000, 20_000, 29_000, 31_000, 100_000])
async def test_a_task_is_due_when_the_script_sends(kit: Kit, sent: int, age_ms: int) -> None:
    task_id = await agent(kit)
    now = await kit.substrate.records.server_time_ms()
    await kit.field(task_id, "wake_at", str(now - age_ms))
    await kit.field(task_id, "wake_n", str(sent))
    looked = await seen(kit, task_id)
    assert looked.ready and not looked.stopped
    assert looked.due == (await kit.substrate.records.resend(task_id) is not None)


async def test_who_is_owned_or_parked_is_left_alone_until_that_ends(kit: Kit) -> None:
    task_id = await agent(kit)
    await kit.wake_long_ago(task_id)
    lease = await kit.claim(task_id)
    assert not (await seen(kit, task_id)).ready
    now = await kit.substrate.records.server_time_ms()
    assert await lease.park(now + 60_000, "retry") is ParkStatus.OK
    assert not (await seen(kit, task_id)).ready
    await kit.field(task_id, "park_at", str(now - 1))
    assert (await seen(kit, task_id)).due
    lease = await kit.claim(task_id)
    await kit.field(task_id, "lease_until", str(now - 1))
    assert (await seen(kit, task_id)).due


async def test_what_was_handed_over_is_due_at_once_and_a_coordinator_is_told(kit: Kit) -> None:
    task_id = await agent(kit)
    lease = await kit.claim(task_id)
    await kit.redis.delete(kit.keys.session_hints)
    assert await lease.release() is ParkStatus.OK
    assert (await seen(kit, task_id)).due
    assert await kit.redis.lrange(kit.keys.session_hints, 0, -1) == [task_id.encode()]


async def test_a_stop_of_the_task_or_above_it_is_seen(kit: Kit) -> None:
    task_id = await agent(kit)
    assert not (await seen(kit, task_id)).stopped
    await kit.substrate.records.request_stop(ids.session_of(task_id), kind="user", reason="x", op="1")
    assert (await seen(kit, task_id)).stopped
    other = await agent(kit)
    await kit.field(other, "stop_upto", "1")
    assert (await seen(kit, other)).stopped


async def test_a_child_whose_parent_has_ended_may_be_stopped(kit: Kit) -> None:
    task_id = await agent(kit)
    session = ids.session_of(task_id)
    await kit.redis.srem(kit.keys.session(session, "open"), session)
    assert (await seen(kit, task_id)).stopped


async def test_a_deadline_is_seen_also_of_an_owned_task(kit: Kit) -> None:
    task_id = await agent(kit)
    await kit.claim(task_id)
    assert not (await seen(kit, task_id)).overdue
    await kit.field(task_id, "deadline", "1")
    assert (await seen(kit, task_id)).overdue


async def test_after_a_restart_only_younger_sessions_are_looked_at_for_one_lease(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with PrivateServer(tmp_path_factory.mktemp("restarted"), fsync="always") as server:
        before, client = Substrate.connect(server.url), Redis.from_url(server.url, protocol=2)
        kit = Kit(before, client, before._connection.keys)
        old = await kit.session()
        await kit.redis.zadd(kit.keys.by_time, {ids.session_key(old): 1})
        assert await before.lookout.trusted([old], 0) == {old}
        await client.aclose()
        server.kill()
        server.start()
        nobody_saw_it = Substrate.connect(server.url)
        assert await nobody_saw_it.lookout.trusted([old], 60_000) == set()
        assert await nobody_saw_it.lookout.trusted([old], 0) == {old}
        assert await before.lookout.trusted([old], 60_000) == set()
        await before.aclose()
        await nobody_saw_it.aclose()


async def test_a_process_whose_request_was_not_answered_waits_too() -> None:
    substrate = Substrate.connect("redis://127.0.0.1:1/0")
    connection = substrate._connection
    assert connection.answering_ms() > 1e12
    with pytest.raises(ServerUnreachable):
        await substrate.ping()
    assert 0 <= connection.answering_ms() < 60_000
    await substrate.aclose()
