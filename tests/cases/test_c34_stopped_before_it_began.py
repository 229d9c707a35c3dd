"""C34: a stop that only the memory of running workers knows, so that a task which had not begun runs after all. A stop
is kept in the record: whoever claims later, for whatever reason, finds it, and the parent hears of it once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.llm.script import CallId, tool_use_id
from celeriac.common.queue.celery_app import RUN_TASK, make_app
from celeriac.common.queue.routing import queue_for
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.remote import RemoteHold
from celeriac.common.testing.replies import answer, dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import TENANT, JobOptions
from celeriac.ops.chaos.watched import Watched

pytestmark = pytest.mark.cluster

COMMAND = "echo began >> began.txt; sleep 98764"
KEY = "stopped"
"""The job's idempotency key: with it the task's id is known before the job is submitted."""
KINDS = pytest.mark.parametrize("kind", [Kind.SHELL, Kind.AGENT])


def plan(kind: Kind, *, session_stops: bool = False) -> str:
    """One task; with `session_stops` the session itself stops it in its second turn, else it waits."""
    task = dispatch("sh", command=COMMAND) if kind is Kind.SHELL else dispatch("a", prompt="Begin.")
    second = use("TaskStop", task_id="{{task:s/1.0}}") if session_stops else say("Waiting.")
    lines: list[JsonObject] = [reply("s", 1, task), reply("s", 2, second)]
    lines += [reply("s", turn, answer("Over."), expect=["<status>killed"]) for turn in range(3, 6)]
    return script(*lines, reply("s/1.0", 1, use("Bash", command=COMMAND)))


class Scene:
    """A job with one task that must never begin."""

    def __init__(self, system: Cluster, client: Client, workspace: Path, replay: str) -> None:
        self.system, self.client, self.workspace, self.replay = system, client, workspace, replay
        self.session = ids.session_for(TENANT, KEY)
        self.job = Watched(client, client.job(self.session))

    def id_of(self, kind: Kind) -> TaskId:
        """The task's id, before it exists."""
        return ids.child(self.session, kind, tool_use_id(CallId("s", 1, 1), 0, 1))

    async def submit(self) -> None:
        """Submit the job."""
        allowed = (f"Bash({COMMAND})",)
        options = JobOptions(cwd=self.workspace, allowed_tools=allowed, replay=self.replay, idempotency_key=KEY)
        await self.client.submit("Do it.", options)

    async def queued(self, kind: Kind) -> Record:
        """The task, as soon as its wake-up is in the queue."""
        task = await self.job.task(kind)

        async def is_queued() -> bool:
            return (await self.client.get(task.task_id)).state is State.QUEUED

        await until(is_queued, what="the wake-up in the queue")
        return await self.client.get(task.task_id)

    async def deliver(self, task: Record) -> None:
        """Have the wake-up come once more, and wait until somebody has taken it, and has run another task since."""
        app = make_app(self.system.url)
        message = Envelope(task_id=task.task_id, run=1).model_dump(mode="json")
        await asyncio.to_thread(
            lambda: app.send_task(RUN_TASK, args=[message], task_id=task.task_id, queue=queue_for(task.kind))
        )
        await self.other_work(task.kind)

    async def other_work(self, kind: Kind) -> None:
        """A second job of one task, which the workers that are there take after all that waited before it."""
        lines = [reply("s", turn, say("Noted.")) for turn in range(2, 5)]
        task = dispatch("sh", command="true") if kind is Kind.SHELL else dispatch("a", prompt="Begin.")
        replay = script(reply("s", 1, task), *lines, reply("s/1.0", 1, say("Done.")))
        options = JobOptions(cwd=self.workspace, allowed_tools=("Bash(true)",), replay=replay)
        assert (await self.client.submit("Do it.", options, wait=True)).state is State.COMPLETED

    async def never_began(self, task: Record) -> None:
        """Nothing of it ran, nobody owned it, it ended once, and the session was told so once and went on."""
        assert (await self.job.end()).state is State.COMPLETED
        after = await self.client.get(task.task_id)
        assert (after.state, after.fence, after.run, after.tlen) == (State.STOPPED, 0, 1, 0)
        assert not (self.workspace / "began.txt").exists()
        assert [(note.task_id, note.status) for note in await self.job.notified()] == [(task.task_id, "killed")]


@asynccontextmanager
async def scene(system: Cluster, workspace: Path, kind: Kind, *, session_stops: bool = False) -> AsyncIterator[Scene]:
    await asyncio.to_thread(workspace.mkdir)
    async with Client.connect(system.url) as client:
        yield Scene(system, client, workspace, plan(kind, session_stops=session_stops))


@KINDS
async def test_a_task_that_was_stopped_while_no_worker_was_up(kind: Kind, system: Cluster, tmp_path: Path) -> None:
    await system.coordinator()
    async with scene(system, tmp_path / "workspace", kind) as it:
        await it.submit()
        task = await it.queued(kind)
        (line,) = await it.client.stop(task.task_id, "not wanted")
        assert line.verdict == "stopped"
        await system.worker()
        await it.deliver(task)
        await it.never_began(task)


@KINDS
async def test_a_task_that_its_session_stopped_while_no_worker_was_up(
    kind: Kind, system: Cluster, tmp_path: Path
) -> None:
    await system.coordinator()
    async with scene(system, tmp_path / "workspace", kind, session_stops=True) as it:
        await it.submit()
        task = await it.job.task(kind)
        await it.job.end()
        await system.worker()
        await it.deliver(task)
        await it.never_began(task)


@KINDS
@pytest.mark.parametrize("workers", ["go on", "are killed", "are told to end"])
async def test_a_task_that_a_worker_holds_and_has_not_begun(
    kind: Kind, workers: str, system: Cluster, tmp_path: Path
) -> None:
    """Its message is out of the queue: with early acknowledgement no broker knows of it any more."""
    system.points = tmp_path / "points"
    await asyncio.gather(system.coordinator(), system.worker("worker1"))
    async with scene(system, tmp_path / "workspace", kind) as it:
        with RemoteHold(system.points, "claim.before", it.id_of(kind)) as claiming:
            await it.submit()
            pid = await claiming.reached()
            task = await it.queued(kind)
            await it.client.stop(task.task_id, "not wanted")
            if workers == "are killed":
                system.kill(pid)
            elif workers == "are told to end":
                os.kill(pid, signal.SIGTERM)
        if workers != "go on":
            await system.worker("worker2")
        await it.deliver(task)
        await it.never_began(task)


@KINDS
async def test_a_task_whose_coordinator_and_workers_are_started_again_after_the_stop(
    kind: Kind, system: Cluster, tmp_path: Path
) -> None:
    await asyncio.gather(system.coordinator("coordinator1"))
    async with scene(system, tmp_path / "workspace", kind) as it:
        await it.submit()
        task = await it.queued(kind)
        await it.job.says("Waiting.")
        system.members["coordinator1"].kill()
        await it.client.stop(task.task_id, "not wanted")
        system.server.kill()
        await asyncio.to_thread(system.server.start)
        await asyncio.gather(system.coordinator("coordinator2"), system.worker())
        await it.deliver(task)
        await it.never_began(task)
