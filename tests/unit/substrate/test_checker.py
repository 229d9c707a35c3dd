"""The checker itself: a healthy world has no faults, and each tampering is found."""

from collections.abc import Awaitable, Callable

import orjson
import pytest

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.substrate.leases import Lease
from celeriac.common.testing.substrate_checker import faults, open_tasks, read_world
from celeriac.common.testing.substrate_kit import BROKEN, DONE, Kit, call, line, result

YES: JsonObject = {"allowed": True}


async def healthy(kit: Kit) -> tuple[Lease, TaskId]:
    """A session with an agent of two runs, messages consumed and returned, a takeover, a failed shell, a question."""
    lease = await kit.owned_session()
    await lease.ask("q1", {"text": "may I?"}, await kit.later())
    await kit.substrate.questions.answer(lease.task_id, "q1", YES, op="q")
    sender = (lease.task_id, lease.token)
    agent = await kit.claim(await kit.agent(lease), process="w")
    await agent.append([line(), call("t1"), result("t1")])
    await kit.expire(agent.task_id)
    agent = await kit.claim(agent.task_id, process="w2")
    shell = await kit.claim(await kit.shell(agent), process="w2")
    await shell.finish(BROKEN)
    head = await kit.inbox(agent.task_id)
    await agent.append([line(inbox_ids=head)], consume=head)
    await agent.finish(DONE)
    await kit.substrate.inboxes.send_message(agent.task_id, "m1", "more", op="o1", sender=sender)
    again = await kit.claim(agent.task_id)
    await again.append([line(run=2, inbox_ids=["m:m1"])], consume=["m:m1"])
    await kit.substrate.inboxes.send_message(agent.task_id, "m2", "late", op="o2", sender=sender)
    await kit.substrate.records.request_stop(agent.task_id, kind="user", reason="r", op="o3")
    await again.finish(DONE)
    head = await kit.inbox(lease.task_id)
    await lease.append([line(inbox_ids=head)], consume=head)
    await lease.finish(DONE)
    return lease, agent.task_id


async def found(kit: Kit, *, accepted: tuple[str, ...] = ("m:m1", "m:m2")) -> list[str]:
    return faults(await read_world(kit.redis, kit.keys), accepted=accepted, effects={"t1": 1}, told=[("q1", YES)])


async def test_a_healthy_world_has_no_faults(twin_kit: Kit) -> None:
    await healthy(twin_kit)
    assert await found(twin_kit) == []
    assert open_tasks(await read_world(twin_kit.redis, twin_kit.keys)) == []
    assert await found(twin_kit, accepted=("m:lost",)) == ["I4 m:lost was accepted, but it is nowhere"]
    assert faults(await read_world(twin_kit.redis, twin_kit.keys), effects={"t1": 2})


Tampering = Callable[[Kit, TaskId, TaskId], Awaitable[object]]


async def _rewrite(kit: Kit, task: TaskId, number: int, **changes: object) -> None:
    key = kit.keys.task(task, "x")
    stored = orjson.loads((await kit.redis.lrange(key, number, number))[0])
    await kit.redis.lset(key, number, orjson.dumps({**stored, **changes}).decode())


TAMPERINGS: dict[str, tuple[str, Tampering]] = {
    "notified twice": ("I1", lambda kit, s, a: kit.redis.rpush(kit.keys.task(s, "in"), f"n:{a}:1")),
    "consumed twice": ("I1", lambda kit, s, a: _rewrite(kit, s, 0, inbox_ids=[f"n:{a}:1", f"n:{a}:1", f"n:{a}:2"])),
    "notified of nothing": ("I1", lambda kit, s, a: kit.redis.hset(kit.keys.session(s, "ent"), f"n:{a}:9", "{}")),
    "not notified": ("I1", lambda kit, s, a: kit.redis.hdel(kit.keys.session(s, "ent"), f"n:{a}:1")),
    "fence goes down": ("I2", lambda kit, s, a: _rewrite(kit, a, 0, token="7/x")),
    "two nonces": ("I2", lambda kit, s, a: _rewrite(kit, a, 1, token="1/other")),
    "completed though stopped": (
        "I3",
        lambda kit, s, a: kit.redis.hset(
            kit.keys.task(s, "t"), mapping={"stop_upto": "1", "stop_kind": "user", "stop_at": "1"}
        ),
    ),
    "message read twice": ("I4", lambda kit, s, a: _rewrite(kit, s, 0, inbox_ids=[f"n:{a}:1", f"n:{a}:2", "m:m1"])),
    "message forgotten": ("I4", lambda kit, s, a: kit.redis.hdel(kit.keys.session(s, "fate"), "m:m2")),
    "unanswered call": ("I7", lambda kit, s, a: _rewrite(kit, a, 2, role="assistant", content=[{"type": "text"}])),
    "result of nothing": ("I7", lambda kit, s, a: _rewrite(kit, a, 1, content=[{"type": "text"}])),
    "line lost": ("tlen", lambda kit, s, a: kit.redis.rpop(kit.keys.task(a, "x"))),
    "children miscounted": ("open_children", lambda kit, s, a: kit.field(s, "open_children", "1")),
    "ended but open": ("open tasks", lambda kit, s, a: kit.redis.sadd(kit.keys.session(s, "open"), a)),
    "ended but owned": ("owned", lambda kit, s, a: kit.field(a, "owner", "9/x")),
    "answered twice": ("q1", lambda kit, s, a: kit.redis.hset(kit.keys.session(s, "ask"), "answer:q1", '{"a": 2}')),
    "answer lost": ("q1", lambda kit, s, a: kit.redis.hdel(kit.keys.session(s, "ask"), "answer:q1")),
    "question lost": ("answers no", lambda kit, s, a: kit.redis.hdel(kit.keys.session(s, "ask"), "q1")),
    "question of nobody": (
        "never was",
        lambda kit, s, a: kit.redis.hset(kit.keys.session(s, "ask"), "q2", "a 1 1 1 {}"),
    ),
    "parked for what is there": ("which is there", lambda kit, s, a: kit.field(a, "park", "answer:q1")),
    "parked for ever": ("without a time", lambda kit, s, a: kit.field(a, "park", "answer:q2")),
    "outcome lost": ("outcomes", lambda kit, s, a: kit.redis.hdel(kit.keys.task(a, "runs"), "1")),
}


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_the_checker_finds_what_was_tampered_with(twin_kit: Kit, name: str) -> None:
    lease, agent = await healthy(twin_kit)
    word, tamper = TAMPERINGS[name]
    await tamper(twin_kit, lease.task_id, agent)
    assert any(word in fault for fault in await found(twin_kit))
