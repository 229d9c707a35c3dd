"""C41: however a task ends, by its time limit, a stop or a kill of its worker, nothing that its commands started is
left."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Limits, State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.processes import gone, marked, running
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

GONE_SECONDS = 10.0
"""CASES: none is left 10 s after the end."""
WAYS = {
    "in the background": "sleep {m} & sleep {m}",
    "in a session of its own": "setsid sleep {m} & nohup setsid sleep {m} >/dev/null 2>&1 & sleep {m}",
    "deaf to TERM": "trap '' TERM HUP INT; bash -c 'trap \"\" TERM HUP; sleep {m}; :' & sleep {m}; sleep {m}",
    "by a double fork": "(setsid sh -c 'sleep {m} & sleep {m}' &) ; sleep {m}",
}


@pytest.fixture
def marker() -> str:
    """Seconds to sleep that no other process sleeps."""
    return f"900.{secrets.randbelow(10**9):09d}"


@asynccontextmanager
async def started(system: Cluster, tmp_path: Path, marker: str, limits: Limits | None = None) -> AsyncIterator[Watched]:
    """A job with an agent for each way and a shell, when all their commands run."""
    await asyncio.gather(system.coordinator(), system.worker("worker1"))
    commands = [way.format(m=marker) for way in WAYS.values()]
    agents = list(enumerate(commands))
    replay = script(
        reply("s", 1, *(dispatch("a", prompt="Run it.") for _ in agents), dispatch("sh", command=commands[0])),
        *(reply("s", turn, say("Waiting.")) for turn in range(2, 9)),
        *(reply(f"s/1.{n}", 1, use("Bash", command=command)) for n, command in agents),
        *(reply(f"s/1.{n}", 2, say("It has ended.")) for n, _ in agents),
    )
    async with Client.connect(system.url) as client:
        rules = tuple(f"Bash({command})" for command in commands)
        job = await client.submit("Go.", JobOptions(cwd=tmp_path, allowed_tools=rules, replay=replay, limits=limits))
        await running(marker, 2 * len(WAYS) + 2)
        yield Watched(client, job)


@pytest.mark.cluster
async def test_a_time_limit_leaves_nothing(system: Cluster, tmp_path: Path, marker: str) -> None:
    async with started(system, tmp_path, marker, Limits(seconds=8)) as watched:
        result = await watched.end()
        await gone(marker, seconds=GONE_SECONDS)
        assert (result.state, result.limited) == (State.FAILED, True)
        tasks = [one for one in await watched.client.tree(watched.job.id) if one.kind is not Kind.SESSION]
        assert len(tasks) == len(WAYS) + 1 and all(one.state.terminal for one in tasks)


@pytest.mark.cluster
async def test_a_stop_leaves_nothing(system: Cluster, tmp_path: Path, marker: str) -> None:
    async with started(system, tmp_path, marker) as watched:
        await watched.job.stop("enough")
        await gone(marker, seconds=GONE_SECONDS)
        assert (await watched.end()).state is State.STOPPED


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_worker_that_is_gone_leaves_nothing_before_another_begins(
    system: Cluster, tmp_path: Path, marker: str, number: int
) -> None:
    async with started(system, tmp_path, marker) as watched:
        system.members["worker1"].signal(number)
        await gone(marker, seconds=GONE_SECONDS)
        await system.worker("worker2")
        assert (await watched.end()).state is State.COMPLETED
        assert not marked(marker), "no command was started again: its effect is unknown"
        told = await watched.notified()
        assert len({one.task_id for one in told}) == len(told) == len(WAYS) + 1
