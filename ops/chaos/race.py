"""One job whose processes a test holds, or kills, at named points; and what must be true of it when all has ended."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Line, NewLine, Origin, text_block
from celeriac.common.contract.task import Outcome, Record, State
from celeriac.common.llm.script import CallId, tool_use_id
from celeriac.common.llm.wire import dumps
from celeriac.common.runtime.turn import api_messages
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.types import Sent
from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.mutants import mutant
from celeriac.common.testing.remote import RemoteHold
from celeriac.common.testing.replies import script
from celeriac.common.testing.substrate_checker import World, faults, read_world
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import TENANT, JobOptions
from celeriac.ops.chaos.watched import END_SECONDS, Watched, processes_in
from celeriac.ops.standin.validator import validate

KEY = "race"
"""The job's idempotency key: with it all ids of the job are known before it is submitted."""


@dataclass(frozen=True, slots=True)
class Race:
    """A cluster, and a job that is submitted when the test's holds are in force."""

    system: Cluster
    client: Client
    workspace: Path
    allow: tuple[str, ...]
    replay: str
    """The model's answers. No process loads the model's client for them, which takes most of a start."""

    @property
    def session(self) -> TaskId:
        """The job's id."""
        return ids.session_for(TENANT, KEY)

    @property
    def agent(self) -> TaskId:
        """The task that the first call of the session's first turn dispatches."""
        return ids.child(self.session, Kind.AGENT, tool_use_id(CallId("s", 1, 1), 0, 1))

    @property
    def watched(self) -> Watched:
        """The job as a client sees it."""
        return Watched(self.client, self.client.job(self.session))

    async def notified(self) -> list[tuple[str, str, str | None]]:
        """What the session was told of ended runs: task, status, result."""
        return [(note.task_id, note.status, note.result) for note in await self.watched.notified()]

    def hold(self, name: str, task_id: TaskId) -> RemoteHold:
        """Hold the first process that arrives at this point with this task."""
        assert self.system.points is not None
        return RemoteHold(self.system.points, name, task_id)

    def gate(self, name: str, task_id: TaskId) -> RemoteHold:
        """Hold everybody who arrives at this point with this task: a wake-up may come twice."""
        assert self.system.points is not None
        return RemoteHold(self.system.points, name, task_id, every=True)

    async def submit(self) -> None:
        """Submit the job."""
        options = JobOptions(cwd=self.workspace, allowed_tools=self.allow, idempotency_key=KEY, replay=self.replay)
        job = await self.client.submit("Do it.", options)
        assert job.id == self.session

    async def tell(self, words: str) -> Sent:
        """Send the user's follow-up to the session."""
        return await self.client.send(self.session, words)

    async def record(self, task_id: TaskId) -> Record:
        """As it is now."""
        return await self.client.get(task_id)

    async def outcome(self, task_id: TaskId, run: int) -> Outcome:
        """How this run ended."""
        return (await self.world()).tasks[task_id].outcomes[run]

    async def ends(self, task_id: TaskId, run: int = 1) -> Record:
        """Wait until this run of the task has ended."""

        async def ended() -> bool:
            record = await self.client.get(task_id)
            return record.run > run or (record.run == run and record.state.terminal)

        await until(ended, seconds=END_SECONDS, what=f"the end of run {run} of {task_id}")
        return await self.client.get(task_id)

    async def claimed(self, task_id: TaskId, fence: int) -> Record:
        """Wait for the claim with this number."""

        async def reached() -> bool:
            return (await self.client.get(task_id)).fence >= fence

        await until(reached, seconds=END_SECONDS, what=f"claim {fence} of {task_id}")
        return await self.client.get(task_id)

    async def all_end(self, *messages: str) -> World:
        """Wait until every task has ended, then check what holds after every race. `messages`: texts that were sent,
        each of which must be in one transcript, once. Raises AssertionError."""

        async def ended() -> bool:
            return all(record.state.terminal for record in await self.client.tree(self.session))

        await until(ended, seconds=END_SECONDS, what="the end of all tasks")
        await until(lambda: not processes_in(self.workspace), what="no process left in the workspace")
        world = await self.world()
        assert faults(world) == []
        texts = [text for task in world.tasks.values() for line in task.lines for text in _user_texts(line)]
        for words in messages:
            assert sum(words in text for text in texts) == 1, f"{words!r} in {texts}"
        for task in world.tasks.values():
            if task.state is not State.COMPLETED:
                continue  # what ended otherwise is repaired by its next run, if there is one
            assert (refusal := refused(task.lines)) == "", f"the API would refuse the history of {task.id}: {refusal}"
        for member in self.system.members.values():
            assert "Traceback" not in member.said(), f"{member.name}: {member.said()[-3000:]}"
        return world

    async def world(self) -> World:
        """All keys of the server."""
        client = Redis.from_url(self.system.url, protocol=2)
        try:
            return await read_world(client, Keys())
        finally:
            await client.aclose()

    async def asked(self, path: str, run: int = 1) -> int:
        """How often the model was asked by this task's run."""
        attempts = await self.client.replay_attempts(self.session)
        return sum(count for call, count in attempts.items() if call[:2] == (path, run))


def refused(lines: Sequence[Line]) -> str:
    """Why the API would not take this history with one more question, by the stand-in's rules; empty if it would."""
    question = NewLine(run=1, turn=0, role="user", content=(text_block("And?"),), origin=Origin.MESSAGE)
    messages = api_messages((), (*lines, question))
    names = {str(block["name"]) for line in lines for block in line.content if block["type"] == "tool_use"}
    tools: list[JsonValue] = [{"name": name, "input_schema": {"type": "object"}} for name in sorted(names)]
    told: list[JsonValue] = [{"role": message.role, "content": list(message.content)} for message in messages]
    body: JsonObject = {"model": "m", "max_tokens": 1, "messages": told, **({"tools": tools} if tools else {})}
    return validate(dumps(body)).reason


def _user_texts(line: Line) -> list[str]:
    return [str(block["text"]) for block in line.content if line.role == "user" and block["type"] == "text"]


@asynccontextmanager
async def race(
    folder: Path,
    *lines: JsonObject,
    coordinators: int = 1,
    workers: int = 1,
    allow: tuple[str, ...] = (),
    mutation: str = "",
) -> AsyncIterator[Race]:
    """Server, coordinators and workers, named `coordinator1`, `worker1` and so on, and a job that these lines answer;
    with a `mutation` the processes work by scripts that lack this rule."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    async with cluster(folder) as system:
        system.points = folder / "points"
        if mutation:
            system.environ["PYTHONPATH"] = str(mutant(folder / "mutant", mutation))
        await asyncio.gather(
            *(system.coordinator(f"coordinator{n + 1}") for n in range(coordinators)),
            *(system.worker(f"worker{n + 1}") for n in range(workers)),
        )
        async with Client.connect(system.url) as client:
            yield Race(system, client, workspace, allow, script(*lines))
        system.refuse_shams()
