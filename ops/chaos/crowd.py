"""Many tasks at once: jobs that fan out to paced agents and commands, and what a test sees of their progress."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Record
from celeriac.common.substrate.keys import Keys
from celeriac.common.testing import replies
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions

EFFECTS = "effects.txt"
"""Each command writes its task's path into this file of its job's folder: a line more would be a command run twice."""
SPARE_TURNS = 40
"""Answers for turns that only a message or a lone notification causes."""
_SLOW_TEXT = "This is said slowly, so that whatever happens to the cluster happens while it streams. "


@dataclass(frozen=True, slots=True)
class Load:
    """What each job does: its session starts all tasks in one answer and then waits for them."""

    agents: int
    shells: int = 0
    pace_ms: float = 300
    """Between two events of an agent's last answer, which has about 10."""
    shell_seconds: float = 1.0

    @property
    def tasks(self) -> int:
        """Tasks of one job."""
        return self.agents + self.shells

    def command(self, block: int) -> str:
        """The one command of the task at this block of the session's answer."""
        slow = f"; sleep {self.shell_seconds}" if block >= self.agents else ""
        return f"echo s/1.{block} >> {EFFECTS}{slow}"

    @property
    def rules(self) -> tuple[str, ...]:
        """What allows these commands."""
        return tuple(f"Bash({self.command(block)})" for block in range(self.tasks))

    def script(self) -> str:
        """For the stand-in, which plays it for each session anew."""
        agents = [dispatch("a", prompt="Run your command, then report.") for _ in range(self.agents)]
        shells = [dispatch("sh", command=self.command(self.agents + number)) for number in range(self.shells)]
        lines: list[JsonObject] = [reply("s", 1, *agents, *shells)]
        lines += [reply("s", turn, say("Noted.")) for turn in range(2, self.tasks + SPARE_TURNS)]
        for block in range(self.agents):
            path = f"s/1.{block}"
            lines.append(reply(path, 1, use("Bash", command=self.command(block))))
            lines += [
                reply(path, turn, say(_SLOW_TEXT * 4), pace_ms=self.pace_ms) for turn in range(2, 2 + SPARE_TURNS)
            ]
        return replies.script(*lines, prompt="Fan out.")


@dataclass(frozen=True, slots=True)
class Crowd:
    """Submitted jobs of one load, and a client of its own to count them by."""

    system: Cluster
    client: Client
    redis: Redis
    load: Load
    jobs: tuple[Job, ...]
    folder: Path

    async def ended_tasks(self) -> int:
        """How many tasks have ended, sessions not counted; those that are not created yet count as open."""
        ended = 0
        for job in self.jobs:
            everything = int(await self.redis.scard(Keys().session(job.id, "all")))
            still = int(await self.redis.scard(Keys().session(job.id, "open")))
            session_open = bool(await self.redis.sismember(Keys().session(job.id, "open"), job.id))
            ended += max(everything - 1, 0) - (still - session_open)
        return ended

    async def open_jobs(self) -> int:
        """How many sessions have not ended."""
        pipeline = self.redis.pipeline(transaction=False)
        for job in self.jobs:
            pipeline.sismember(Keys().session(job.id, "open"), job.id)
        return sum(map(bool, await pipeline.execute()))

    async def tasks(self) -> list[Record]:
        """All records, sessions included."""
        return [record for job in self.jobs for record in await self.client.tree(job.id)]

    async def running(self) -> list[Record]:
        """The tasks that somebody owns now, without sessions."""
        return [record for record in await self.tasks() if record.parent and record.lease and not record.state.terminal]

    async def progress(self, ended: int, *, seconds: float) -> None:
        """Wait until so many tasks have ended."""

        async def reached() -> bool:
            return await self.ended_tasks() >= ended

        await until(reached, seconds=seconds, what=f"{ended} tasks ended")

    async def end(self, *, seconds: float) -> None:
        """Wait until every session has ended."""

        async def ended() -> bool:
            return await self.open_jobs() == 0

        await until(ended, seconds=seconds, what="the end of all sessions")


async def submit(system: Cluster, client: Client, redis: Redis, load: Load, *, jobs: int) -> Crowd:
    """Submit so many jobs at once, each in a folder of its own. The stand-in must play the load's script."""
    folder = system.folder / "workspaces"

    async def one(number: int) -> Job:
        workspace = folder / f"{number}"
        await asyncio.to_thread(workspace.mkdir, parents=True)
        return await client.submit("Fan out.", JobOptions(cwd=workspace, allowed_tools=load.rules))

    submitted: Sequence[Job] = await asyncio.gather(*(one(number) for number in range(jobs)))
    return Crowd(system, client, redis, load, tuple(submitted), folder)
