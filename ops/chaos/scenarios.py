"""The kill scenarios: what is killed, at which observed moment, and what must hold afterwards."""

import asyncio
import re
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.runtime.resume import EFFECT_UNKNOWN
from celeriac.common.testing import replies
from celeriac.common.testing.cluster import Cluster, Member, cluster
from celeriac.common.testing.replies import dispatch, reply, say, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions

END_SECONDS = 90.0
"""How long a job may take to end after a kill, with the default lease and noise."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill and its recovery."""

    kind: str
    pid: int
    moment: str
    recovery_s: float
    """From SIGKILL to the next claim; to the job's end where nothing had to be claimed."""


@dataclass(slots=True)
class Field:
    """What a scenario acts on."""

    cluster: Cluster
    client: Client
    job: Job
    effect: Path
    killed: list[Kill]

    async def task(self, kind: Kind) -> Record | None:
        """The job's one task of this kind, if it exists."""
        return next((record for record in await self.client.tree(self.job.id) if record.kind is kind), None)

    async def owner_of(self, task_id: TaskId) -> Member:
        """The process that owns the task now."""
        record = await self.client.get(task_id)
        assert record.lease is not None, f"{task_id} has no owner"
        name = record.lease.process.partition("@")[0]
        return self.cluster.members[name]

    async def kill_owner(self, task_id: TaskId, moment: str, *, claimed_again: bool = True) -> None:
        """SIGKILL the owner, and wait for the next claim."""
        record = await self.client.get(task_id)
        victim = await self.owner_of(task_id)
        started = time.monotonic()
        victim.kill()
        if claimed_again:
            await until(
                lambda: self._claimed(task_id, record.fence), seconds=END_SECONDS, what=f"{task_id} claimed again"
            )
        self.killed.append(Kill(victim.name, victim.pid, moment, time.monotonic() - started))

    async def _claimed(self, task_id: TaskId, fence: int) -> bool:
        return (await self.client.get(task_id)).fence > fence


def script(command: str, *, hold: bool = False) -> str:
    """A job whose agent runs one command and reports; with `hold` its stream stays open after the Bash block."""
    first = reply("s/1.0", 1, use("Bash", command=command))
    if hold:
        first["hold"] = "content_block_stop:0"
    return replies.script(
        reply("s", 1, dispatch("a", prompt="Run it once.")),
        reply("s", 2, say("Waiting.")),
        reply("s", 3, use("SyntheticOutput", result="All done.")),
        first,
        reply("s/1.0", 2, say("The command was run.")),
        prompt="Run it.",
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named moment."""

    name: str
    sleep_s: float
    hold: bool
    strike: Callable[[Field], Awaitable[None]]


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


async def _effect_begun(field: Field) -> Record:
    await until(lambda: _lines(field.effect) > 0, seconds=END_SECONDS, what="the command's first line")
    agent = await field.task(Kind.AGENT)
    assert agent is not None
    return agent


async def _worker_while_streaming(field: Field) -> None:
    agent = await _effect_begun(field)
    await until(
        lambda: any(entry.get("event") == "holding" for entry in field.cluster.requests()), what="a held stream"
    )
    await field.kill_owner(agent.task_id, "worker: stream open, Bash started")


async def _worker_in_bash(field: Field) -> None:
    agent = await _effect_begun(field)
    await field.kill_owner(agent.task_id, "worker: inside a Bash call")


async def _worker_after_finish(field: Field) -> None:
    agent = await _effect_begun(field)
    victim = await field.owner_of(agent.task_id)

    async def finished() -> bool:
        return (await field.client.get(agent.task_id)).state.terminal

    await until(finished, seconds=END_SECONDS, what="the agent's end")
    started = time.monotonic()
    victim.kill()
    await until(lambda: _ended(field), seconds=END_SECONDS, what="the job's end")
    field.killed.append(Kill(victim.name, victim.pid, "worker: right after finish", time.monotonic() - started))


async def _ended(field: Field) -> bool:
    return (await field.client.get(field.job.id)).state.terminal


async def _coordinator_after_dispatch(field: Field) -> None:
    await _effect_begun(field)
    await field.kill_owner(field.job.id, "coordinator: between dispatch and notification")


async def _coordinator_before_consumption(field: Field) -> None:
    agent = await _effect_begun(field)
    owner = await field.owner_of(field.job.id)
    owner.signal(signal.SIGSTOP)  # so that the notification arrives and is not consumed

    async def finished() -> bool:
        return (await field.client.get(agent.task_id)).state.terminal

    await until(finished, seconds=END_SECONDS, what="the agent's end")
    await field.kill_owner(field.job.id, "coordinator: between notification and consumption")


SCENARIOS = (
    Scenario("worker-while-streaming", 60.0, True, _worker_while_streaming),
    Scenario("worker-in-bash", 60.0, False, _worker_in_bash),
    Scenario("worker-after-finish", 0.2, False, _worker_after_finish),
    Scenario("coordinator-after-dispatch", 1.0, False, _coordinator_after_dispatch),
    Scenario("coordinator-before-consumption", 1.0, False, _coordinator_before_consumption),
)


async def play(scenario: Scenario, folder: Path, *, lease_seconds: float) -> Kill:
    """Play one scenario on a fresh system of two coordinators and two workers; check everything; the kill that was
    made."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    effect = workspace / "effect.txt"
    command = f"echo line >> {effect.name}; sleep {scenario.sleep_s}"
    async with cluster(folder, lease_seconds=lease_seconds) as system:
        await system.standin(script(command, hold=scenario.hold))
        await asyncio.gather(*(system.coordinator(f"coordinator{n}") for n in (1, 2)))
        await asyncio.gather(*(system.worker(f"worker{n}") for n in (1, 2)))
        system.refuse_shams()
        async with Client.connect(system.url) as client:
            options = JobOptions(cwd=str(workspace), allowed_tools=(f"Bash({command})",))
            job = await client.submit("Run it.", options)
            field = Field(system, client, job, effect, [])
            await scenario.strike(field)
            await until(lambda: _ended(field), seconds=END_SECONDS, what="the job's end")
            await check(field)
    assert field.killed, "no process was killed: the scenario proved nothing"
    return field.killed[0]


async def check(field: Field) -> None:
    """What must hold after every kill. Raises AssertionError."""
    session = await field.client.get(field.job.id)
    assert session.state is State.COMPLETED, f"the job is {session.state}: {session.outcome}"
    lines = await field.client.transcript(field.job.id)
    texts = [str(block.get("text", "")) for line in lines for block in line.content]
    notified = [found for text in texts for found in re.findall(r"<task-id>(.*?)</task-id>", text)]
    agent = await field.task(Kind.AGENT)
    assert agent is not None
    assert notified == [agent.task_id], f"notifications in the transcript: {notified}"
    refused = [entry for entry in field.cluster.requests() if entry.get("status", 200) != 200]
    assert not refused, f"requests that the stand-in refused: {refused}"
    await _check_effect(field, agent)


async def _check_effect(field: Field, agent: Record) -> None:
    count = _lines(field.effect)
    transcript = orjson.dumps([line.model_dump(mode="json") for line in await field.client.transcript(agent.task_id)])
    told = EFFECT_UNKNOWN.encode() in transcript
    assert count == 1 or (count == 2 and told), f"the command wrote {count} lines; effect unknown was told: {told}"
