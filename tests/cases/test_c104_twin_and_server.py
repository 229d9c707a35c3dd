"""C104: the in-memory twin and a real server give the same answers; what only a real server can do is tested on one."""

import asyncio
from collections.abc import Sequence

import pytest

from celeriac.common.contract.task import State
from celeriac.common.substrate.leases import Lease, Terms
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import ClaimRefusal, SendStatus
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.substrate_kit import DONE, Kit, call, line, result
from celeriac.common.testing.waiting import until

Told = Sequence[object]


async def queue(kit: Kit) -> Told:
    """Hints: in order, each once, none for a process that was not meant."""
    hints = kit.substrate.hints
    sessions = [await kit.session() for _ in range(3)]
    await hints.push("p1", sessions[1])
    await hints.push("p1", sessions[0])
    got = [await hints.wait("p1", sessions=True, timeout_s=1) for _ in range(5)]
    other = await hints.wait("p2", sessions=False, timeout_s=0.05)
    nothing = await hints.wait("p1", sessions=True, timeout_s=0.05)
    return [*(sessions.index(one) for one in got if one is not None), other, nothing]


async def lock(kit: Kit) -> Told:
    """Claims of one task by many at once: one gets it, the others are told why not, and again after its end."""
    session = await kit.session()
    claims = await asyncio.gather(*(kit.substrate.claim(session, None, process=f"p{n}") for n in range(8)))
    (owner,) = [one for one in claims if isinstance(one, Lease)]
    told = sorted(str(one) for one in claims if isinstance(one, ClaimRefusal))
    await owner.append([line("one"), call("t1"), result("t1")])
    await owner.finish(DONE)
    return [*told, str(await kit.substrate.claim(session, None, process="late")), owner.run, owner.tlen]


async def expiry(kit: Kit) -> Told:
    """A lease that has run out: the next owner's fence is higher, and the former one writes nothing more."""
    first = await kit.owned_session()
    await kit.expire(first.task_id)
    second = await kit.claim(first.task_id, process="next")
    lost = await asyncio.gather(first.append([line("late")]), first.renew(), first.finish(DONE), return_exceptions=True)
    record = await kit.substrate.records.get(first.task_id)
    return [[type(one).__name__ for one in lost], record.fence, record.attempt, record.tlen, second.run]


async def family(kit: Kit) -> Told:
    """Children, messages and notifications in Lua with several keys, nested JSON and text that is no ASCII."""
    session = await kit.owned_session()
    agent = await kit.claim(await kit.agent(session), process="worker")
    sent = await kit.substrate.inboxes.send_message(
        agent.task_id, "1", 'é \U0001f600 "\\" \0', op="o", sender=(session.task_id, session.token)
    )
    refused = await session.finish(DONE)
    await agent.append([line("x")], consume=["m:1"])
    await agent.finish(DONE.model_copy(update={"text": "\U0001f600 ]]>", "structured": {"n": 1.5, "e": [], "o": {}}}))
    (entry,) = await kit.substrate.inboxes.unread(session.task_id)
    ended = await kit.substrate.records.get(agent.task_id)
    assert ended.outcome is not None
    return [
        sent.status is SendStatus.QUEUED,
        refused.status.value,
        len(refused.open_tasks),
        entry.text.replace(agent.task_id, "ID").partition("<duration_ms>")[0],
        ended.outcome.structured,
        str(await kit.substrate.inboxes.fate(session.task_id, "m:1")).split()[0],
        ended.state is State.COMPLETED,
    ]


PLAYS = {"queue": queue, "lock": lock, "expiry": expiry, "family": family}


@pytest.mark.parametrize("name", PLAYS)
async def test_both_answer_the_same(name: str, twin_kit: Kit, server_kit: Kit) -> None:
    assert await PLAYS[name](twin_kit) == await PLAYS[name](server_kit)


async def test_a_blocked_reader_of_a_real_server_hears_at_once(server_kit: Kit) -> None:
    hints = server_kit.substrate.hints
    reading = asyncio.ensure_future(hints.wait("p1", sessions=True, timeout_s=20))

    async def is_blocked() -> bool:
        return int((await server_kit.redis.info("clients"))["blocked_clients"]) > 0

    await until(is_blocked, what="a blocked client")
    session = await server_kit.session()
    async with asyncio.timeout(10):
        assert await reading == session


async def test_a_lease_of_a_real_server_really_runs_out(private_server: PrivateServer, server_kit: Kit) -> None:
    terms = Terms(lease_ms=300, max_attempts=3, max_attempts_total=20)
    short = Substrate.connect(private_server.url, prefix=server_kit.keys.prefix, terms=terms)
    session = await server_kit.session()
    first = await short.claim(session, None, process="first")
    assert isinstance(first, Lease)
    busy = await short.claim(session, None, process="second")

    async def free() -> bool:
        return isinstance(await short.claim(session, None, process="second"), Lease)

    await until(free, seconds=10, what="the end of the lease")
    assert busy is ClaimRefusal.BUSY and not first.may_act()
    assert (await server_kit.substrate.records.get(session)).fence == 2
    await short.aclose()
