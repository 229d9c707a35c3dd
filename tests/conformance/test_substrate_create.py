"""create, mark_queued, and the session list (PROTOCOL 3 and 7)."""

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost, NotFound
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import AgentSpec, Limits, SessionSpec, State, Workspace
from celeriac.common.substrate.types import Created
from celeriac.common.testing.substrate_kit import DONE, Kit, new_task


async def test_a_created_session_has_its_record_its_place_in_the_list_and_a_hint(kit: Kit) -> None:
    session = await kit.session()
    record = await kit.substrate.records.get(session)
    assert (record.state, record.run, record.parent, record.path) == (State.CREATED, 1, None, "s")
    assert record.times.created > 0
    assert session in await kit.substrate.sessions.listed()
    assert await kit.substrate.sessions.page(0, 10) == (session,)
    assert await kit.substrate.hints.wait("p", sessions=True, timeout_s=2) == session
    assert await kit.substrate.records.open_tasks(session) == (session,)


async def test_every_field_of_a_new_task_comes_back(kit: Kit) -> None:
    lease = await kit.owned_session()
    task_id = ids.child(lease.task_id, Kind.AGENT, "toolu_é")
    task = new_task(task_id, lease.task_id, AgentSpec(prompt="ü\u2028", model="m"), limits=Limits(turns=3, seconds=60))
    workspace = Workspace(root="/w", label="ws-1")
    task = task.model_copy(update={"labels": ("gpu",), "tools": ("Bash(a *)",), "workspace": workspace})
    await kit.substrate.records.create(task, parent_token=lease.token)
    record = await kit.substrate.records.get(task_id)
    for name in ("kind", "parent", "path", "title", "spec", "mode", "tools", "limits", "workspace", "labels"):
        assert getattr(record, name) == getattr(task, name), name
    raw = await kit.raw(task_id)
    assert int(raw["deadline"]) - int(raw["created_at"]) == 60_000


async def test_creating_again_answers_exists_whatever_the_state_and_mismatch_for_another_request(kit: Kit) -> None:
    task = new_task(ids.session_for("default", ids.nonce()), None, SessionSpec(prompt="one"))
    records = kit.substrate.records
    assert await records.create(task, parent_token=None) is Created.CREATED
    assert await records.create(task, parent_token=None) is Created.EXISTS
    lease = await kit.claim(task.task_id)
    await lease.finish(DONE)
    assert await records.create(task, parent_token=None) is Created.EXISTS
    other = task.model_copy(update={"spec": SessionSpec(prompt="two")})
    assert await records.create(other, parent_token=None) is Created.MISMATCH
    assert await kit.state(task.task_id) is State.COMPLETED


async def test_a_child_needs_a_parent_that_is_held(kit: Kit) -> None:
    lease = await kit.owned_session()
    task = new_task(ids.child(lease.task_id, Kind.AGENT, "t"), lease.task_id, AgentSpec(prompt="p"))
    for token in ("1/other", "", None):
        with pytest.raises(LeaseLost):
            await kit.substrate.records.create(task, parent_token=token)
    assert await kit.substrate.records.find(task.task_id) is None
    with pytest.raises(NotFound):
        await kit.substrate.records.get(task.task_id)


async def test_a_child_of_a_stopped_parent_is_refused_but_a_repeated_create_is_not(kit: Kit) -> None:
    lease = await kit.owned_session()
    before = await kit.agent(lease, "t1")
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="o")
    task = new_task(ids.child(lease.task_id, Kind.AGENT, "t2"), lease.task_id, AgentSpec(prompt="p"))
    assert await kit.substrate.records.create(task, parent_token=lease.token) is Created.STOPPING
    again = new_task(before, lease.task_id, AgentSpec(prompt="work"))
    assert await kit.substrate.records.create(again, parent_token=lease.token) is Created.EXISTS
    assert await kit.substrate.records.find(task.task_id) is None


async def test_children_are_counted_and_the_tree_is_in_the_order_of_creation(kit: Kit) -> None:
    lease = await kit.owned_session()
    agents = [await kit.agent(lease, f"t{n}") for n in range(12)]
    tree = await kit.substrate.records.tree(agents[3])
    assert [record.task_id for record in tree] == [lease.task_id, *agents]
    assert tree[0].open_children == 12
    assert set(await kit.substrate.records.descendants(lease.task_id)) == set(agents)
    assert await kit.substrate.records.descendants(agents[0]) == ()


async def test_a_background_shell_hangs_below_its_agent_and_its_session(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.claim(await kit.agent(lease))
    shell = await kit.shell(agent)
    assert set(await kit.substrate.records.descendants(lease.task_id)) == {agent.task_id, shell}
    assert await kit.substrate.records.descendants(agent.task_id) == (shell,)
    assert (await kit.substrate.records.get(shell)).parent == agent.task_id


async def test_mark_queued_moves_only_the_created_run_that_it_names(kit: Kit) -> None:
    lease = await kit.owned_session()
    agent = await kit.agent(lease)
    await kit.substrate.records.mark_queued(agent, 2)
    assert await kit.state(agent) is State.CREATED
    await kit.substrate.records.mark_queued(agent, 1)
    assert await kit.state(agent) is State.QUEUED
    await kit.claim(agent)
    await kit.substrate.records.mark_queued(agent, 1)
    assert await kit.state(agent) is State.RUNNING
    await kit.substrate.records.mark_queued(ids.child(lease.task_id, Kind.AGENT, "unknown"), 1)


async def test_pages_are_newest_first(kit: Kit) -> None:
    sessions = [await kit.session() for _ in range(3)]
    scores: dict[str, float] = {str(ids.session_key(session)): float(n) for n, session in enumerate(sessions)}
    await kit.redis.zadd(kit.keys.by_time, {**scores})
    assert await kit.substrate.sessions.page(0, 2) == (sessions[2], sessions[1])
    assert await kit.substrate.sessions.page(2, 2) == (sessions[0],)
    assert await kit.substrate.sessions.page(5, 2) == ()


async def test_a_sweeper_unlists_an_ended_session_and_only_the_version_that_it_saw(kit: Kit) -> None:
    sessions = kit.substrate.sessions
    lease = await kit.owned_session()
    version = (await sessions.listed())[lease.task_id]
    assert not await sessions.seal_and_unlist(lease.task_id, version)
    await lease.finish(DONE)
    newer = await sessions.list(lease.task_id)
    assert newer > version
    assert not await sessions.seal_and_unlist(lease.task_id, version)
    assert (await sessions.listed())[lease.task_id] == newer
    assert await sessions.seal_and_unlist(lease.task_id, newer)
    assert lease.task_id not in await sessions.listed()
    assert await sessions.page(0, 1) == (lease.task_id,)


async def test_a_session_with_open_tasks_below_is_not_sealed(kit: Kit) -> None:
    lease = await kit.owned_session()
    await kit.claim(await kit.agent(lease), process="w")
    await kit.substrate.records.request_stop(lease.task_id, kind="user", reason="r", op="o")
    await lease.finish(DONE)
    version = (await kit.substrate.sessions.listed())[lease.task_id]
    assert not await kit.substrate.sessions.seal_and_unlist(lease.task_id, version)


async def test_a_listed_session_without_record_is_dropped_after_its_grace(kit: Kit) -> None:
    sessions = kit.substrate.sessions
    session = ids.new_session()
    await sessions.list(session)
    assert not await sessions.drop(session)
    assert await sessions.drop(session, grace_ms=0)
    assert await sessions.listed() == {}
    assert not await sessions.drop(await kit.session(), grace_ms=0)
