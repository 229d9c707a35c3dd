"""What people, programs and the coordinator are told when a task falls silent, is lost, comes back, or is given up."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from celeriac.common.contract.events import SystemEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.presence import Presence
from celeriac.common.contract.task import Record, State
from celeriac.common.testing import replies
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.command import CommandLine
from celeriac.common.testing.replies import dispatch, reply, say, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

SLEEP = "echo started; sleep 60"
pytestmark = pytest.mark.cluster


def one_agent(*first: JsonObject, hold: str | None = None, repeat: int = 1) -> str:
    """A job whose agent begins with this answer."""
    return replies.script(
        reply("s", 1, dispatch("a", prompt="Work.")),
        reply("s", 2, say("Waiting.")),
        reply("s", 3, use("SyntheticOutput", result="All done.")),
        reply("s/1.0", 1, *first, hold=hold, repeat=repeat),
        reply("s/1.0", 2, say("Done.")),
    )


async def submitted(client: Client, folder: Path) -> Watched:
    workspace = folder / "workspace"
    workspace.mkdir()
    return Watched(client, await client.submit("Go.", JobOptions(cwd=workspace, allowed_tools=(f"Bash({SLEEP})",))))


async def agent_is(job: Watched, presence: Presence) -> Record:
    async def is_so() -> bool:
        return (await job.task(Kind.AGENT)).presence is presence

    await until(is_so, seconds=40, what=f"the agent {presence}")
    return await job.task(Kind.AGENT)


async def presences(job: Watched) -> AsyncIterator[str]:
    """What the stream of the job tells of its agent, to its end."""
    async with aclosing(job.job.follow()) as events:
        async for event in events:
            if isinstance(event, SystemEvent) and "presence" in event.data and event.task_id != job.job.id:
                yield str(event.data["presence"])


async def test_a_lost_task_shows_as_lost_and_the_coordinator_hears_of_the_loss_and_of_the_return(
    system: Cluster, tmp_path: Path
) -> None:
    await system.standin(one_agent(use("Bash", command=SLEEP)))
    await asyncio.gather(system.coordinator(), system.worker("worker1"))
    async with Client.connect(system.url) as client:
        job = await submitted(client, tmp_path)
        await agent_is(job, Presence.ALIVE)
        await until(lambda: (tmp_path / "workspace").exists() and _started(system), what="the command's start")
        system.members["worker1"].kill()
        lost = await agent_is(job, Presence.LOST)
        shown = CommandLine(tmp_path, system.environ).run("show", lost.task_id)
        assert "lost" in shown.out
        await system.worker("worker2")
        assert (await job.end()).state is State.COMPLETED
        told = await job.words()
        assert told.count(f"{lost.task_id} has not been heard of") == 1
        assert told.count(f"{lost.task_id} is running again") == 1
        assert [seen async for seen in presences(job)] == ["lost", "alive"]
        assert len(await job.notified()) == 1


def _started(system: Cluster) -> bool:
    """The agent's first answer has been asked for."""
    return any(entry.get("path") == "s/1.0" for entry in system.requests())


async def test_a_stalled_stream_shows_as_silent_and_its_stop_answers_a_line_for_each_task(
    system: Cluster, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"lease": {"silent_seconds": 1.0}}))
    system.environ["CELERIAC_SETTINGS"] = str(settings)
    stalled = one_agent(say("I begin"), hold="content_block_stop:0")
    await system.standin(stalled)
    await asyncio.gather(system.coordinator(), system.worker())
    async with Client.connect(system.url) as client:
        job = await submitted(client, tmp_path)
        agent = await job.task(Kind.AGENT)
        commands = CommandLine(tmp_path, system.environ)

        def shows_silent() -> bool:
            return "silent for" in commands.run("show", job.job.id).out

        await until(shows_silent, seconds=40, what="show says silent")
        assert "producing_output" in commands.run("list").out, "the session that waits for it is not silent itself"
        stopped = commands.run("stop", job.job.id)
        assert stopped.code == 0
        assert [line.split()[:2] for line in stopped.out.splitlines()] == [
            [job.job.id, "stopped"],
            [agent.task_id, "stopped"],
        ]
        assert [seen async for seen in presences(job)] == ["silent"]


async def test_a_task_that_loses_every_owner_ends_as_poison_and_the_coordinator_is_told(
    system: Cluster, tmp_path: Path
) -> None:
    system.environ["CELERIAC_SUPERVISOR_MAX_ATTEMPTS"] = "1"
    await system.standin(one_agent(say("I begin"), hold="content_block_stop:0", repeat=4))
    await system.coordinator()
    async with Client.connect(system.url) as client:
        job = await submitted(client, tmp_path)
        for number in (1, 2, 3):  # a claim accepts one loss, and the next claim counts the one before it
            worker = await system.worker(f"worker{number}")
            await agent_is(job, Presence.ALIVE)
            worker.kill()
            await agent_is(job, Presence.LOST)
        await system.worker("worker4")
        assert (await job.end()).state is State.COMPLETED
        agent = await job.task(Kind.AGENT)
        assert agent.state is State.FAILED
        assert agent.outcome is not None and agent.outcome.reason == "poison"
        (notified,) = await job.notified()
        assert (notified.status, "poison" in notified.summary) == ("failed", True)


async def test_a_stop_of_a_task_whose_worker_was_killed_ends_it_and_is_not_confirmed(
    system: Cluster, tmp_path: Path
) -> None:
    await system.standin(one_agent(say("I begin"), hold="content_block_stop:0"))
    await asyncio.gather(system.coordinator(), system.worker())
    async with Client.connect(system.url) as client:
        job = await submitted(client, tmp_path)
        await agent_is(job, Presence.ALIVE)
        system.members["worker"].kill()
        commands = CommandLine(tmp_path, system.environ)
        stopped = commands.run("stop", job.job.id)
        assert stopped.code == 1
        session, agent = stopped.out.splitlines()
        assert session.split()[1] == "stopped" and "not confirmed" in agent and "not seen to end" in agent
        record = await job.task(Kind.AGENT)
        assert record.state is State.STOPPED
        assert "not confirmed" in commands.run("show", record.task_id).out
