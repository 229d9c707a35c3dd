"""C104: a fake store hides how the real one behaves: blocking reads, expiry, Lua, locks. One scenario each on the
in-memory twin and on a real server, and what was seen must be the same, event for event."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.ids import TaskId
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.leases import Lease, Terms
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import ClaimRefusal
from celeriac.common.testing.servers import PrivateServer, in_memory
from celeriac.common.testing.substrate_kit import DONE, Kit, line
from celeriac.common.testing.waiting import until

CLAIMERS = 20
TERMS = Terms(lease_ms=1000)
"""Short, so that a lease runs out by itself, as time does it and not a test."""
STANDS_SECONDS = 0.3
"""A block that the server ended sooner was none."""

Trace = list[object]
Story = Callable[[Kit], Awaitable[Trace]]


async def on_both(story: Story, private_server: PrivateServer) -> Trace:
    """Play it on the twin and on the server; what was seen, when both saw the same."""
    fake = FakeServer()
    prefix = f"{ids.nonce()}:"
    twin = Kit(in_memory(server=fake, terms=TERMS), FakeAsyncRedis(server=fake, protocol=2), Keys())
    substrate = Substrate.connect(private_server.url, prefix=prefix, terms=TERMS)
    real = Kit(substrate, Redis.from_url(private_server.url, protocol=2), Keys(prefix))
    traces: list[Trace] = []
    for kit in (twin, real):
        try:
            async with asyncio.timeout(30):
                traces.append(await story(kit))
        finally:
            await kit.redis.aclose()
            await kit.substrate.aclose()
    assert traces[0] == traces[1]
    return traces[1]


async def blocked_for(kit: Kit, process: str, seconds: float, *, sessions: bool = False) -> tuple[object, bool]:
    """What a blocking read brought, and whether it had blocked."""
    began = asyncio.get_running_loop().time()
    found = await kit.substrate.hints.wait(process, sessions=sessions, timeout_s=seconds)
    return found, asyncio.get_running_loop().time() - began >= STANDS_SECONDS


async def reading(kit: Kit, process: str, *, sessions: bool = False) -> asyncio.Task[TaskId | None]:
    """A reader that hangs in its blocking read by now."""
    waiting = kit.substrate.hints.wait(process, sessions=sessions, timeout_s=10)
    reader = asyncio.create_task(waiting)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(STANDS_SECONDS):
            await asyncio.shield(reader)
    return reader


async def queue(kit: Kit) -> Trace:
    """Hints: in order, each to one reader, a reader blocks until one comes or its time is over."""
    first, second = TaskId("s-" + "1" * 13), TaskId("s-" + "2" * 13)
    hints = kit.substrate.hints
    seen: Trace = [await blocked_for(kit, "p", 0.4)]
    await hints.push("p", first)
    await hints.push("p", second)
    seen += [await blocked_for(kit, "p", 5), await blocked_for(kit, "p", 5)]
    readers = [await reading(kit, "p", sessions=True), await reading(kit, "q", sessions=True)]
    await hints.push_sessions(first)
    done, rest = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
    seen += [sorted(str(reader.result()) for reader in done), len(rest)]
    await hints.push_sessions(second)
    seen += [await reader for reader in rest]
    await kit.redis.rpush(kit.keys.hints("p"), b"\xff rubbish")
    seen += [await blocked_for(kit, "p", 5), await kit.redis.exists(kit.keys.hints("p"))]
    await hints.push("p", first)
    return [*seen, 0 < await kit.redis.pttl(kit.keys.hints("p")) <= 3_600_000]


async def lock(kit: Kit) -> Trace:
    """A task that many claim at once has one owner; its lease runs out by itself, then it has the next."""
    session = await kit.session()
    answers = await asyncio.gather(*(kit.substrate.claim(session, 1, process=f"p{n}") for n in range(CLAIMERS)))
    (owner,) = [answer for answer in answers if isinstance(answer, Lease)]
    seen: Trace = [answers.count(ClaimRefusal.BUSY), (await kit.substrate.records.get(session)).fence]
    await owner.renew()
    seen.append(await kit.substrate.claim(session, 1, process="q"))

    async def free() -> Lease | None:
        answer = await kit.substrate.claim(session, 1, process="q", nonce="next")
        return answer if isinstance(answer, Lease) else None

    await until(free, what="the end of the lease")
    after = await kit.substrate.records.get(session)
    return [*seen, after.fence, after.attempt, owner.may_act(), after.lease is not None and after.lease.owner]


async def claims(kit: Kit) -> Trace:
    """The claim as a script: each refusal by its name, one answer for one nonce, a stale owner's write refused."""
    claim = kit.substrate.claim
    session = await kit.session()
    seen: Trace = [await claim(ids.new_session(), None, process="p"), await claim(session, 9, process="p")]
    old = await kit.claim(session)
    again = await claim(session, None, process="p", nonce=old.token.partition("/")[2])
    seen += [isinstance(again, Lease) and again.token == old.token, await claim(session, 1, process="q")]
    await kit.expire(session)
    new = await kit.claim(session)
    try:
        await old.append([line("late")])
    except LeaseLost:
        seen.append("lost")
    await new.append([line("in time")])
    await new.finish(DONE)
    lines = await kit.substrate.transcripts.lines(session)
    ended = await kit.substrate.records.outcome(session, 1)
    seen += [await claim(session, 1, process="q"), [each.content for each in lines], await kit.state(session)]
    return [*seen, ended is not None and ended.undeliverable]


async def lua(kit: Kit) -> Trace:
    """Whatever a script may meet: numbers, null, texts, errors, and that a script that fails wrote nothing wrong."""
    key = f"{kit.keys.listed}:lua"
    seen: Trace = []
    for body in (
        "return {1, 'two', false, 'after nil'}",
        "return tostring(2^53) .. ' ' .. string.format('%d', 2^52)",
        "return cjson.encode({true, cjson.null})",  # an empty table would be [] there and {} here: no script writes one
        "return cjson.decode(cjson.encode({c = 'é'})).c",  # written as \\u00e9 there: what is read is the same
        "return cjson.decode(ARGV[1]).n + 1",
        "redis.call('HSET', KEYS[1], 'n', 5); return redis.call('HINCRBY', KEYS[1], 'n', 2)",
        "return redis.call('HGET', KEYS[1], 'absent') == false",
        "return redis.call('TYPE', KEYS[1])",
        "return #redis.call('TIME')",
        "redis.call('RPUSH', KEYS[1], 'x'); return 'never'",
        "return redis.error_reply('MINE not this')",
    ):
        try:
            answer = await kit.redis.eval(body, 1, key, '{"n": 41}')
        except ResponseError as error:
            answer = next(word for word in ("WRONGTYPE", "MINE", "other") if word in f"{error} other")
        seen.append(answer)
    return seen


@pytest.mark.parametrize("story", [queue, lock, claims], ids=lambda story: story.__name__)
async def test_the_twin_and_a_real_server_show_the_same(story: Story, private_server: PrivateServer) -> None:
    assert await on_both(story, private_server)


async def test_scripts_run_on_the_twin_as_they_run_on_a_real_server(private_server: PrivateServer) -> None:
    seen = await on_both(lua, private_server)
    assert seen[-2:] == ["WRONGTYPE", "MINE"]


async def test_the_comparison_sees_a_difference(private_server: PrivateServer) -> None:
    async def differing(kit: Kit) -> Trace:
        return [kit.keys.listed]

    with pytest.raises(AssertionError):
        await on_both(differing, private_server)
