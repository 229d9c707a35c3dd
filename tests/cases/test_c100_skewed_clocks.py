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
_shift, _time, _time_ns = float(os.environ["SKEW_SECONDS"]), time.time, time.time_ns
time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + round(_shift * 1e9)
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


async def skewed(system: Cluster, role: str, name: str, seconds: float, zone: str = "UTC") -> Member:
    """A process whose time of day is off by so much."""
    folder = system.folder / "skew"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SKEW)
    extra = {"PYTHONPATH": str(folder), "SKEW_SECONDS": str(seconds), "TZ": zone, "CELERIAC_WORKER_CONCURRENCY": "1"}
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
    rules = tuple(f"Bash({COMMAND.format(name=f'effect{n}')})" for n in (0, 1))
    options = JobOptions(cwd=workspace, allowed_tools=rules, replay=SCRIPT, limits=Limits(seconds=100))
    async with Client.connect(system.url) as client:
        watched = Watched(client, await client.submit("Go.", options))
        result = await watched.end()
        agents = [record for record in await client.tree(watched.job.id) if record.kind is Kind.AGENT]
        words = await watched.words()
    assert result.state is State.COMPLETED
    assert [(agent.fence, agent.attempt, agent.run) for agent in agents] == [(1, 0, 1)] * 2
    assert "has not been heard of" not in words
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
