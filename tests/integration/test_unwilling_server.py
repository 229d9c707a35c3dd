"""A server that is alive and refuses to write: nothing is lost, and what waits goes on when it can (C89)."""

import asyncio

from celeriac.common.contract.task import State
from celeriac.common.testing.substrate_kit import DONE, Kit, line
from celeriac.common.testing.waiting import until


async def test_a_server_without_memory_is_waited_for(server_kit: Kit) -> None:
    lease = await server_kit.owned_session()
    await server_kit.redis.config_set("maxmemory", "1")
    try:
        writing = asyncio.ensure_future(lease.append([line("hello")]))
        refused = until(lambda: server_kit.redis.info("errorstats"), what="the server's answer")
        await refused
        assert not writing.done()
    finally:
        await server_kit.redis.config_set("maxmemory", "0")
    async with asyncio.timeout(10):
        assert (await writing).tlen == 1
        await lease.finish(DONE)
    assert (await server_kit.substrate.records.get(lease.task_id)).state is State.COMPLETED


async def test_a_replica_after_a_failover_is_waited_for(server_kit: Kit) -> None:
    lease = await server_kit.owned_session()
    await server_kit.redis.replicaof("127.0.0.1", "1")
    try:
        writing = asyncio.ensure_future(lease.append([line("hello")]))
        await until(lambda: server_kit.redis.info("errorstats"), what="the server's answer")
        assert not writing.done()
    finally:
        await server_kit.redis.replicaof("NO", "ONE")
    async with asyncio.timeout(10):
        assert (await writing).tlen == 1
