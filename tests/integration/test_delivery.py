"""Celery may deliver a wake-up late, twice, or to a paused worker: a task is executed once (PROTOCOL 3).

Side effects are counted, not records. Two of the tests also run on a copy of the scripts with one rule taken back, and
must fail there; the third rule's mutation is in test_substrate_mutations.py.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.queue.celery_app import RUN_TASK, make_app
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.mutants import mutant
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.scenarios import script


class Scene:
    """One job whose agent runs `command` in its own workspace."""

    def __init__(self, system: Cluster, client: Client, job: Job, workspace: Path) -> None:
        self.system, self.client, self.job, self.workspace = system, client, job, workspace

    async def agent(self) -> Record | None:
        return next((record for record in await self.client.tree(self.job.id) if record.kind is Kind.AGENT), None)

    def effect(self) -> list[str]:
        file = self.workspace / "effect.txt"
        return file.read_text().split() if file.exists() else []

    async def end(self, seconds: float) -> Record:
        async def ended() -> bool:
            return (await self.client.get(self.job.id)).state.terminal

        await until(ended, seconds=seconds, what="the job's end")
        return await self.client.get(self.job.id)


@asynccontextmanager
async def scene(system: Cluster, tmp_path: Path, command: str) -> AsyncIterator[Scene]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=workspace, allowed_tools=(f"Bash({command})",), replay=script(command))
        job = await client.submit("Run it.", options)
        yield Scene(system, client, job, workspace)


async def three_deliveries(system: Cluster, tmp_path: Path) -> None:
    """The same message three times at once, to two workers; and more often while the command runs."""
    await system.coordinator()
    async with scene(system, tmp_path, "echo start >> effect.txt; sleep 3; echo end >> effect.txt") as play:
        await until(play.agent, what="the agent's record")
        agent = await play.agent()
        assert agent is not None
        app = make_app(system.url)
        message = Envelope(task_id=agent.task_id, run=1)

        def again(times: int) -> None:
            for _ in range(times):
                app.send_task(RUN_TASK, args=[message.model_dump(mode="json")], task_id=agent.task_id, queue="a")

        again(2)
        await asyncio.gather(system.worker("worker1"), system.worker("worker2"))
        await until(play.effect, what="the command's start")
        again(10)  # so many that the worker which does not own the task takes some of them
        ended = await play.end(30)
        assert play.effect() == ["start", "end"]
        assert ended.state is State.COMPLETED


async def long_task(system: Cluster, tmp_path: Path, seconds: float) -> None:
    """A task that takes many leases, with two workers and a supervisor that looks for lost ones."""
    await asyncio.gather(system.coordinator(), system.worker("worker1"), system.worker("worker2"))
    async with scene(system, tmp_path, f"echo start >> effect.txt; sleep {seconds}; echo end >> effect.txt") as play:
        ended = await play.end(seconds + 25)
        agent = await play.agent()
        assert agent is not None
        assert play.effect() == ["start", "end"]
        assert (ended.state, agent.fence) == (State.COMPLETED, 1)


async def paused_worker(system: Cluster, tmp_path: Path) -> None:
    """SIGSTOP past the lease: commands are dead before the new owner starts; what was paused may write nothing."""
    await asyncio.gather(system.coordinator(), system.worker("worker1"), system.worker("worker2"))
    command = "echo start >> effect.txt; while :; do date +%s.%N > beat.txt; sleep 0.05; done"
    async with scene(system, tmp_path, command) as play:
        await until((play.workspace / "beat.txt").exists, what="the command's first beat")
        agent = await play.agent()
        assert agent is not None and agent.lease is not None
        paused = system.members[agent.lease.process.partition("@")[0]]
        paused.signal(signal.SIGSTOP)
        first = agent.lease.owner

        async def taken_over() -> bool:
            now = await play.client.get(agent.task_id)
            return now.fence > agent.fence

        await until(taken_over, seconds=20, what="a new owner")
        claimed = (await play.client.get(agent.task_id)).progress.heartbeat_at / 1000
        await play.end(30)
        last_beat = float((play.workspace / "beat.txt").read_text())
        assert last_beat < claimed, "the old command was alive when the new owner had started"
        paused.signal(signal.SIGCONT)
        await until(lambda: paused.said().count("lease"), what="its giving up")
        tokens = [line.token for line in await play.client.transcript(agent.task_id)]
        assert tokens == sorted(tokens, key=lambda token: int(token.partition("/")[0])), "it wrote after its lease"
        assert tokens[-1] != first
        assert play.effect() == ["start"]


@pytest.mark.cluster
async def test_three_deliveries_are_one_execution(system: Cluster, tmp_path: Path) -> None:
    await three_deliveries(system, tmp_path)


@pytest.mark.cluster
async def test_a_task_of_many_leases_is_executed_once(system: Cluster, tmp_path: Path) -> None:
    await long_task(system, tmp_path, 30)


@pytest.mark.cluster
async def test_a_paused_worker_has_lost_its_commands_and_its_voice(system: Cluster, tmp_path: Path) -> None:
    await paused_worker(system, tmp_path)


Play = Callable[[Cluster, Path], Awaitable[None]]


async def _shorter(system: Cluster, tmp_path: Path) -> None:
    await long_task(system, tmp_path, 10)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("mutation", "play"), [("no free check", three_deliveries), ("renew without effect", _shorter)]
)
async def test_without_its_rule_the_test_fails(mutation: str, play: Play, system: Cluster, tmp_path: Path) -> None:
    system.environ["PYTHONPATH"] = str(mutant(tmp_path / "mutant", mutation))
    with pytest.raises(AssertionError):
        await play(system, tmp_path)
