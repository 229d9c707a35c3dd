"""The tests of the tests: with one rule of the scripts taken back, the checker must find a fault; without, none."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.leases import Lease, Terms
from celeriac.common.substrate.scripts import ScriptLibrary
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.substrate_actors import MUTATIONS
from celeriac.common.testing.substrate_checker import faults, read_world
from celeriac.common.testing.substrate_kit import Kit, line

LEASE_MS = 600
Executions = Counter[str]


@pytest.fixture
async def make_kit(private_server: PrivateServer) -> AsyncIterator[Callable[[str], Kit]]:
    made: list[Kit] = []

    def make(mutation: str) -> Kit:
        prefix = f"{ids.nonce()}:"
        scripts = ScriptLibrary.mutated(MUTATIONS[mutation])
        substrate = Substrate.connect(private_server.url, prefix=prefix, terms=Terms(LEASE_MS), scripts=scripts)
        made.append(Kit(substrate, Redis.from_url(private_server.url, protocol=2), Keys(prefix)))
        return made[-1]

    yield make
    for kit in made:
        await kit.substrate.aclose()
        await kit.redis.aclose()


async def one_message_delivered_three_times(kit: Kit) -> Executions:
    """Three workers get the same wake-up at once; each that may run it does so once."""
    session = await kit.session()
    claims = await asyncio.gather(*(kit.substrate.claim(session, 1, process=f"w{n}") for n in range(3)))
    return Counter(f"run 1 of {session}" for claim in claims if isinstance(claim, Lease))


async def a_task_longer_than_its_lease(kit: Kit) -> Executions:
    """The owner's heart beats for two leases, while another process tries to take the task."""
    lease = await kit.owned_session()
    executions: Executions = Counter([str(lease.task_id)])
    beating = asyncio.create_task(lease.heartbeat())
    start = await kit.substrate.records.server_time_ms()
    while await kit.substrate.records.server_time_ms() < start + 2 * LEASE_MS:
        if isinstance(await kit.substrate.claim(lease.task_id, 1, process="w2"), Lease):
            executions[lease.task_id] += 1
            break
    beating.cancel()
    return executions


async def a_paused_owner_that_writes_late(kit: Kit) -> Executions:
    """Its lease was taken and the new owner has written; then the old one goes on where it was."""
    old = await kit.owned_session()
    await kit.expire(old.task_id)
    new = await kit.claim(old.task_id)
    await new.append([line("new")])
    old.tlen = new.tlen
    with contextlib.suppress(LeaseLost):
        await old.append([line("old")])
    return Counter()


SCENES: dict[str, Callable[[Kit], Awaitable[Executions]]] = {
    "no free check": one_message_delivered_three_times,
    "renew without effect": a_task_longer_than_its_lease,
    "no owner check": a_paused_owner_that_writes_late,
}


@pytest.mark.parametrize("mutation", SCENES)
async def test_the_checker_finds_the_mutated_rule(make_kit: Callable[[str], Kit], mutation: str) -> None:
    for rule, expected in (("", False), (mutation, True)):
        kit = make_kit(rule)
        executions = await SCENES[mutation](kit)
        found = faults(await read_world(kit.redis, kit.keys), effects=executions)
        assert bool(found) is expected, found
