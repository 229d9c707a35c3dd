"""The local side of a lease: heartbeat, local clock, news."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.leases import Lease, Terms
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.points import fail, hold
from celeriac.common.testing.servers import PrivateServer, in_memory
from celeriac.common.testing.substrate_kit import DONE, Kit, line

LEASE_MS = 240


@pytest.fixture
async def short() -> AsyncIterator[Kit]:
    server = FakeServer()
    substrate = in_memory(server=server, terms=Terms(LEASE_MS))
    client = FakeAsyncRedis(server=server, protocol=2)
    yield Kit(substrate, client, Keys())
    await client.aclose()
    await substrate.aclose()


async def test_without_a_heartbeat_the_local_clock_aborts_before_the_lease_can_expire(short: Kit) -> None:
    lease = await short.owned_session()
    before = await short.substrate.records.get(lease.task_id)
    async with asyncio.timeout(5):
        assert await lease.node.wait() is AbortReason.LEASE_LOST
    assert before.lease is not None
    assert await short.substrate.records.server_time_ms() < before.lease.until_ms
    assert not lease.may_act()
    with pytest.raises(LeaseLost):
        await lease.append([line()])
    assert await short.substrate.transcripts.lines(lease.task_id) == ()


async def test_a_heartbeat_keeps_the_lease_and_tells(short: Kit) -> None:
    lease = await short.owned_session()
    beats = asyncio.Semaphore(0)
    lease.on_renewed.append(beats.release)
    beating = asyncio.create_task(lease.heartbeat())
    async with asyncio.timeout(5):
        for _ in range(6):  # two leases long
            await beats.acquire()
    assert lease.may_act()
    beating.cancel()


async def test_a_poke_renews_at_once(kit: Kit) -> None:
    lease = await kit.owned_session()
    beating = asyncio.create_task(lease.heartbeat())
    await kit.substrate.inboxes.send_message(lease.task_id, "m", "hi", op="o", sender=None)
    async with asyncio.timeout(2):  # a third of the lease is 5 s
        lease.poke()
        await lease.changed()
    assert lease.unread == 1
    beating.cancel()


async def test_changed_returns_for_a_child_that_ended_and_for_a_stop(twin_kit: Kit) -> None:
    lease = await twin_kit.owned_session()
    child = await twin_kit.claim(await twin_kit.agent(lease), process="w")
    await lease.renew()
    waiting = asyncio.create_task(lease.changed())
    await child.finish(DONE)
    await lease.renew()
    await lease.append([line()], consume=await twin_kit.inbox(lease.task_id))
    async with asyncio.timeout(2):
        await waiting
        stopping = asyncio.create_task(lease.changed())
        await twin_kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="o")
        await lease.renew()
        await stopping
    assert lease.stop is not None


async def test_a_lost_lease_ends_the_heartbeat_and_wakes_who_waits(twin_kit: Kit) -> None:
    lease = await twin_kit.owned_session()
    waiting = asyncio.create_task(lease.changed())
    beating = asyncio.create_task(lease.heartbeat())
    await twin_kit.expire(lease.task_id)
    await twin_kit.claim(lease.task_id)
    lease.poke()
    async with asyncio.timeout(2):
        await asyncio.gather(waiting, beating)
    assert lease.lost
    assert lease.node.reason is AbortReason.LEASE_LOST


async def test_a_stopped_run_that_also_loses_its_lease_may_not_write(twin_kit: Kit) -> None:
    lease = await twin_kit.owned_session()
    await twin_kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="o")
    await lease.renew()
    await twin_kit.expire(lease.task_id)
    await twin_kit.substrate.records.settle_stop(lease.task_id)
    with pytest.raises(LeaseLost):
        await lease.renew()
    assert lease.node.reason is AbortReason.USER
    assert lease.lost


async def test_a_server_that_stays_silent_costs_the_lease_not_the_caller(tmp_path: Path) -> None:
    with PrivateServer(tmp_path) as server:
        substrate = Substrate.connect(server.url, terms=Terms(4 * LEASE_MS))
        client = Redis.from_url(server.url, protocol=2)
        lease = await Kit(substrate, client, Keys()).owned_session()
        server.signal(signal.SIGSTOP)
        async with asyncio.timeout(5):
            with pytest.raises(LeaseLost):
                await lease.append([line()])
        assert lease.node.reason is AbortReason.LEASE_LOST
        server.signal(signal.SIGCONT)
        await client.aclose()
        await substrate.aclose()


async def test_a_write_that_takes_long_keeps_its_lease_and_the_heart_beats_as_ever(short: Kit) -> None:
    lease = await short.owned_session()
    beats = asyncio.Semaphore(0)
    count: list[None] = []
    lease.on_renewed += [beats.release, lambda: count.append(None)]
    with hold("append.before", lease.task_id) as held:
        beating = asyncio.create_task(lease.heartbeat())
        writing = asyncio.create_task(lease.append([line()]))
        await held.reached.wait()
        expires = await short.substrate.records.server_time_ms() + 2 * LEASE_MS
        async with asyncio.timeout(5):
            while await short.substrate.records.server_time_ms() < expires:
                await beats.acquire()
        held.release()
        await writing
    assert len(count) < 20, "two leases are six beats: this heart races"
    assert (await short.substrate.records.get(lease.task_id)).tlen == 1
    beating.cancel()


async def test_a_renew_during_a_finish_is_no_loss(twin_kit: Kit) -> None:
    lease = await twin_kit.owned_session()
    with hold("finish.after", lease.task_id) as held:
        finishing = asyncio.create_task(lease.finish(DONE))
        await held.reached.wait()
        renewing = asyncio.create_task(lease.renew())
        with hold("renew.after", lease.task_id) as renewed:
            await renewed.reached.wait()
            renewed.release()
        held.release()
        await finishing
        with pytest.raises(LeaseLost):
            await renewing
    assert lease.ended
    assert not lease.node.aborted


async def test_a_renew_that_overlaps_a_write_asks_again(twin_kit: Kit) -> None:
    lease = await twin_kit.owned_session()
    await twin_kit.substrate.inboxes.send_message(lease.task_id, "m", "hi", op="o", sender=None)
    with hold("renew.after", lease.task_id) as held:
        renewing = asyncio.create_task(lease.renew())
        await held.reached.wait()
        await lease.append([line()], consume=["m:m"])
        held.release()
        await renewing
    assert lease.unread == 0  # not what the older answer said


async def test_one_lost_reply_delays_a_heartbeat_only(short: Kit) -> None:
    lease = await short.owned_session()
    with fail("renew.before", RedisConnectionError("gone")):
        await lease.renew()
    assert isinstance(lease, Lease)
    assert lease.may_act()
