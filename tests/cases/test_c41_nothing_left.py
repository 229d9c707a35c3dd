"""C41: children of an agent's command outlive what ended the task: its time limit, a stop, or the death of its worker.
However a task ends, nothing that its commands started is left, in the background or in a session of its own."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Limits, Record, State
from celeriac.common.queue.celery_app import make_app
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.processes import gone, marked, running
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

pytestmark = pytest.mark.cluster

GONE_SECONDS = 10.0
"""What the case allows. Commands of a killed worker need no other worker: they watch it themselves."""
COMMANDS = {
    "sleep {m} & sleep {m}": 2,
    "trap '' TERM HUP INT; (setsid sleep {m} &); nohup sleep {m} & sleep {m}; :": 3,
}
"""In the background; deaf, and in a session of its own. With how many processes hold the marker at least."""
LIMIT = Limits(seconds=4)


@dataclass(frozen=True, slots=True)
class Scene:
    """A job with one task, whose command has started everything that it starts."""

    system: Cluster
    marker: str
    job: Watched
    task: Record

    async def ends(self) -> State:
        """The task's end; by then nothing is left."""

        async def ended() -> bool:
            return (await self.job.client.get(self.task.task_id)).state.terminal

        await until(ended, seconds=30, what="the task's end")
        assert not marked(self.marker)
        return (await self.job.client.get(self.task.task_id)).state


async def begun(system: Cluster, client: Client, folder: Path, kind: Kind, command: str, limits: Limits) -> Scene:
    marker = f"98765.{secrets.randbelow(10**9):09d}"
    text = command.format(m=marker)
    task = dispatch("sh", command=text) if kind is Kind.SHELL else dispatch("a", prompt="Begin.")
    spare = [reply("s", turn, say("Noted.")) for turn in range(2, 9)]
    agent = [reply("s/1.0", 1, use("Bash", command=text)), reply("s/1.0", 2, say("Reported."))]
    replay = script(reply("s", 1, task), *spare, *agent)
    options = JobOptions(cwd=folder, allowed_tools=(f"Bash({text})",), replay=replay, limits=limits)
    watched = Watched(client, await client.submit("Do it.", options))
    await running(marker, COMMANDS[command])
    return Scene(system, marker, watched, await watched.task(kind))


@asynccontextmanager
async def scenes(system: Cluster, folder: Path, limits: Limits | None = None) -> AsyncIterator[list[Scene]]:
    """Each command as a shell and as an agent's, all at once in one worker, which lets no closing command end."""
    system.environ["CELERIAC_WORKER_SOFT_SHUTDOWN_SECONDS"] = "0"
    await asyncio.gather(system.coordinator(), system.worker("worker1"))
    async with Client.connect(system.url) as client:
        wanted = [(kind, command) for kind in (Kind.SHELL, Kind.AGENT) for command in COMMANDS]
        starting = [begun(system, client, folder, kind, command, limits or Limits()) for kind, command in wanted]
        yield await asyncio.gather(*starting)


async def stop_task(it: Scene) -> None:
    (line,) = await it.job.client.stop(it.task.task_id, "enough")
    assert line.verdict == "stopped"


async def stop_job(it: Scene) -> None:
    assert {line.verdict for line in await it.job.job.stop()} == {"stopped"}


async def limit_task(it: Scene) -> None:
    """As a supervisor does it when the task's deadline has passed."""
    await it.job.client.stop(it.task.task_id, "time limit", kind="limit")


async def press_terminate(it: Scene) -> None:
    """As Flower's button does it."""
    control = make_app(it.system.url).control
    await asyncio.to_thread(lambda: control.revoke(it.task.task_id, terminate=True, signal="SIGTERM"))


@pytest.mark.parametrize("end", [stop_task, stop_job, limit_task, press_terminate], ids=lambda end: end.__name__)
async def test_a_task_that_is_ended_leaves_nothing(
    end: Callable[[Scene], Awaitable[None]], system: Cluster, tmp_path: Path
) -> None:
    async with scenes(system, tmp_path) as found:
        await asyncio.gather(*(end(it) for it in found))
        states = {await it.ends() for it in found}
        assert states == {State.FAILED if end is limit_task else State.STOPPED}


async def test_a_job_whose_time_is_over_leaves_nothing(system: Cluster, tmp_path: Path) -> None:
    async with scenes(system, tmp_path, LIMIT) as found:
        states = {await it.ends() for it in found}
        assert states <= {State.FAILED, State.STOPPED}, "by its own limit, or with its session, whichever is first"
        assert {(await it.job.end()).limited for it in found} == {True}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_worker_that_dies_is_paused_or_closes_leaves_nothing(
    number: signal.Signals, system: Cluster, tmp_path: Path
) -> None:
    async with scenes(system, tmp_path) as found:
        system.members["worker1"].signal(number)
        await asyncio.gather(*(gone(it.marker, seconds=GONE_SECONDS) for it in found))
        await system.worker("worker2")
        ends = {it.task.kind: set[State]() for it in found}
        for it in found:
            ends[it.task.kind].add(await it.ends())
        assert ends == {Kind.SHELL: {State.FAILED}, Kind.AGENT: {State.COMPLETED}}, "nothing of it was run again"
        assert {(await it.job.end()).state for it in found} == {State.COMPLETED}
