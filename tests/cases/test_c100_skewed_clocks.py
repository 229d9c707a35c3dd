"""C100: machines disagree about the time of day; leases, deadlines and parks follow the server's clock and each
machine's own monotonic one, so nobody is called lost for it."""

import asyncio
import os
from pathlib import Path

import pytest

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Limits, State
from celeriac.common.substrate.leases import Lease
from celeriac.common.testing.cluster import Cluster, Member
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.substrate_kit import DONE, Kit
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

SKEW = """
import os, time
_time, _time_ns = time.time, time.time_ns
def _shift():
    with open(os.environ["SKEW_FILE"]) as file:
        return float(file.read())
time.time = lambda: _time() + _shift()
time.time_ns = lambda: _time_ns() + round(_shift() * 1e9)
"""
"""Run by every Python that starts with this folder on its path, before anything of ours or of Celery's is loaded."""
COMMAND = "echo start >> {name}; sleep 7; echo end >> {name}"
SCRIPT = script(
    reply("s", 1, dispatch("a", prompt="First."), dispatch("a", prompt="Second.")),
    *(reply("s", turn, say("Waiting.")) for turn in (2, 3, 4)),
    *(
        line
        for n in (0, 1)
        for line in (
            reply(f"s/1.{n}", 1, use("Bash", command=COMMAND.format(name=f"effect{n}"))),
            reply(f"s/1.{n}", 2, say("It was run.")),
        )
    ),
)


def set_clock(system: Cluster, name: str, seconds: float) -> None:
    """Shift a process's time of day, before it starts or while it runs."""
    fresh = system.folder / "skew" / f"{name}.new"
    fresh.write_text(str(seconds))
    fresh.rename(fresh.with_suffix(""))


async def skewed(system: Cluster, role: str, name: str, seconds: float, zone: str = "UTC") -> Member:
    """A process whose time of day is off by so much."""
    folder = system.folder / "skew"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SKEW)
    set_clock(system, name, seconds)
    file = str(folder / name)
    extra = {"PYTHONPATH": str(folder), "SKEW_FILE": file, "TZ": zone, "CELERIAC_WORKER_CONCURRENCY": "1"}
    arguments = (role, "--name", name, "--parent-pid", str(os.getpid()))
    return await system.spawn(name, *arguments, ready=f"{role} ready", extra=extra)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("coordinator", "first", "second"),
    [((0, "UTC"), (120, "UTC"), (0, "Pacific/Kiritimati")), ((-86_400, "Asia/Kolkata"), (3600, "UTC"), (-120, "UTC"))],
    ids=["a worker is ahead", "nobody agrees"],
)
async def test_nobody_is_lost_and_nothing_is_done_twice(
    system: Cluster, tmp_path: Path, coordinator: tuple[float, str], first: tuple[float, str], second: tuple[float, str]
) -> None:
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    await asyncio.gather(
        skewed(system, "coordinator", "coordinator", *coordinator),
        skewed(system, "worker", "worker1", *first),
        skewed(system, "worker", "worker2", *second),
    )
    async with Client.connect(system.url) as client:
        await nobody_is_lost(await submitted(client, workspace), workspace)


@pytest.mark.cluster
async def test_clocks_that_are_set_while_tasks_run_cost_nobody_a_lease(system: Cluster, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    jumps = {"coordinator": 86_400.0, "worker1": 7200.0, "worker2": -7200.0}
    await asyncio.gather(*(skewed(system, name.rstrip("12"), name, 0) for name in jumps))
    async with Client.connect(system.url) as client:
        watched = await submitted(client, workspace)
        for n in (0, 1):
            await until((workspace / f"effect{n}").exists, what="the commands' start")
        for name, seconds in jumps.items():
            set_clock(system, name, seconds)
        await nobody_is_lost(watched, workspace)


@pytest.mark.cluster
@pytest.mark.parametrize("seconds", [7200, -7200])
async def test_a_deadline_is_kept_by_whatever_clock_a_coordinator_has(
    seconds: float, system: Cluster, tmp_path: Path
) -> None:
    await asyncio.gather(skewed(system, "coordinator", "coordinator", seconds), skewed(system, "worker", "worker", 0))
    async with Client.connect(system.url) as client:
        watched = await submitted(client, tmp_path, limit_s=4)
        result = await watched.end()
        times = (await client.get(watched.job.id)).times
        assert (result.state, result.limited) == (State.FAILED, True)
        assert times.ended - times.created >= 4000


async def submitted(client: Client, workspace: Path, limit_s: float = 100) -> Watched:
    rules = tuple(f"Bash({COMMAND.format(name=f'effect{n}')})" for n in (0, 1))
    options = JobOptions(cwd=workspace, allowed_tools=rules, replay=SCRIPT, limits=Limits(seconds=limit_s))
    return Watched(client, await client.submit("Go.", options))


async def nobody_is_lost(watched: Watched, workspace: Path) -> None:
    """Both tasks had one owner each, ran once, at the same time, and were never called lost."""
    assert (await watched.end()).state is State.COMPLETED
    agents = [record for record in await watched.client.tree(watched.job.id) if record.kind is Kind.AGENT]
    assert [(agent.fence, agent.attempt, agent.run) for agent in agents] == [(1, 0, 1)] * 2
    assert "has not been heard of" not in await watched.words()
    assert [(workspace / f"effect{n}").read_text().split() for n in (0, 1)] == [["start", "end"]] * 2
    assert all(0 <= agent.times.created <= agent.times.started <= agent.times.ended for agent in agents)
    starts = [agent.times.started for agent in agents]
    ends = [agent.times.ended for agent in agents]
    assert max(starts) < min(ends), "each of the two workers had one"


async def test_a_lease_does_not_ask_for_the_time_of_day(server_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await server_kit.owned_session()
    for shift in (86_400.0, -86_400.0):
        monkeypatch.setattr("time.time", lambda shift=shift: 1.0e9 + shift)
        await lease.renew()
        assert lease.may_act()
        record = await server_kit.substrate.records.get(lease.task_id)
        assert record.lease is not None
        assert record.lease.until_ms > await server_kit.substrate.records.server_time_ms()
    await lease.finish(DONE)


async def test_a_servers_clock_that_jumps_ends_a_lease_and_doubles_nothing(server_kit: Kit) -> None:
    """As after a failover to a machine whose clock is ahead: the lease looks over, another claims, one writes."""
    first = await server_kit.owned_session()
    await server_kit.expire(first.task_id)
    second = await server_kit.claim(first.task_id, process="next")
    await second.finish(DONE)
    await until(lambda: _lost(first), what="the former owner's knowledge")
    assert (await server_kit.substrate.records.get(first.task_id)).fence == 2


async def _lost(lease: Lease) -> bool:
    try:
        await lease.renew()
    except LeaseLost:
        return True
    return False
