"""The supervisor and the sessions of a process: one bad record must not take the others down."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.task import Limits, SessionSpec, State
from celeriac.common.substrate.keys import Keys
from celeriac.common.testing.points import hold
from celeriac.common.testing.servers import in_memory
from celeriac.common.testing.substrate_kit import DONE, Kit, new_task
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.supervisor import Supervisor


@dataclass
class Claims:
    """Stands in for the sessions of a process; fails for what it is told to."""

    bad: set[TaskId] = field(default_factory=set)
    claimed: list[TaskId] = field(default_factory=list)
    room: bool = True

    def claim(self, session_id: TaskId) -> None:
        if session_id in self.bad:
            raise ValueError("a record that nobody can read")
        self.claimed.append(session_id)


def supervisor_of(kit: Kit, claims: Claims) -> Supervisor:
    return Supervisor(Dispatcher(kit.substrate, None), claims, scan_seconds=1, lease_ms=1000)  # type: ignore[arg-type]  # no worker is woken


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    server = FakeServer()
    substrate, redis = in_memory(server=server), FakeAsyncRedis(server=server, protocol=2)
    yield Kit(substrate, redis, Keys())
    await redis.aclose()
    await substrate.aclose()


async def test_a_task_that_cannot_be_dealt_with_stays_alone(kit: Kit) -> None:
    substrate = kit.substrate
    sessions = [await kit.session() for _ in range(3)]
    for session in sessions:
        await substrate.sessions.list(session)
        await kit.wake_long_ago(session)
    claims = Claims(bad={sessions[1]})
    supervisor = supervisor_of(kit, claims)
    await supervisor.scan(await kit.substrate.sessions.listed())
    assert set(claims.claimed) == {sessions[0], sessions[2]}


async def test_waiting_sessions_are_claimed_oldest_first_whatever_was_sent_for_them_before(kit: Kit) -> None:
    sessions = [await kit.session() for _ in range(5)]
    for session in reversed(sessions):
        await kit.substrate.sessions.list(session)
    claims = Claims()
    await supervisor_of(kit, claims).scan(await kit.substrate.sessions.listed())
    assert claims.claimed == sessions[::-1]


async def test_a_full_process_claims_nothing_and_has_others_told(kit: Kit) -> None:
    session = await kit.session()
    await kit.substrate.sessions.list(session)
    await kit.wake_long_ago(session)
    await kit.redis.delete(kit.keys.session_hints)
    claims = Claims(room=False)
    await supervisor_of(kit, claims).scan(await kit.substrate.sessions.listed())
    assert claims.claimed == []
    assert await kit.redis.lrange(kit.keys.session_hints, 0, -1) == [session.encode()]


async def test_a_run_over_its_time_fails_with_that_reason(kit: Kit) -> None:
    session = await kit.session(limits=Limits(seconds=60))
    await kit.substrate.sessions.list(session)
    supervisor = supervisor_of(kit, Claims())
    await supervisor.scan(await kit.substrate.sessions.listed())
    assert not (await kit.state(session)).terminal
    await kit.field(session, "deadline", "1")
    await supervisor.scan(await kit.substrate.sessions.listed())
    record = await kit.substrate.records.get(session)
    assert record.outcome is not None
    assert (record.state, record.outcome.reason) == (State.FAILED, "the time limit is over")


async def test_a_session_whose_client_died_before_its_record_is_taken_off_the_list(kit: Kit) -> None:
    dead, ended, living = ids.new_session(), await kit.session(), await kit.session()
    sessions = kit.substrate.sessions
    await sessions.list(dead)
    await kit.redis.hset(kit.keys.listed, dead, f"{await sessions.listed_version(dead)}@1")  # long ago
    fresh = ids.new_session()
    await sessions.list(fresh)
    owner = await kit.claim(ended)
    await owner.finish(DONE)
    supervisor = supervisor_of(kit, Claims())
    await supervisor.scan(await sessions.listed(), unlist=True)
    assert set(await sessions.listed()) == {fresh, living}


async def test_a_session_that_was_dropped_before_its_late_record_is_listed_again(kit: Kit) -> None:
    session = ids.new_session()
    task = new_task(session, None, SessionSpec(prompt="late"))
    with hold("create.before", session) as paused:
        creating = asyncio.create_task(kit.substrate.records.create(task, parent_token=None))
        await paused.reached.wait()
        assert await kit.substrate.sessions.drop(session, grace_ms=-1)
        paused.release()
        await creating
    assert session in await kit.substrate.sessions.listed()
