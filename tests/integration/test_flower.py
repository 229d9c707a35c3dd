"""Flower, as a process, over a running job: what it shows, what it hides, and its buttons (C34, C58, C98)."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import orjson
import pytest
from redis.asyncio import Redis

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched, processes_in

PASSWORD = "a-password-of-this-test"
COMMAND = "touch begun; sleep 300"
SCRIPT = script(
    reply("s", 1, dispatch("sh", command=COMMAND, prompt="XYZZY-inside")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, say("It was killed."), expect=["<status>killed</status>"]),
)


@asynccontextmanager
async def flower(system: Cluster) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=await system.flower(PASSWORD), auth=("celeriac", PASSWORD)) as client:
        yield client


@asynccontextmanager
async def celery_events(url: str) -> AsyncIterator[list[JsonObject]]:
    """What Celery tells whoever listens, as it stands on the wire."""
    seen: list[JsonObject] = []
    async with Redis.from_url(url) as redis, redis.pubsub() as channel:
        await channel.psubscribe("*celeryev*")

        async def listen() -> None:
            async for message in channel.listen():
                if message["type"] == "pmessage":
                    body = orjson.loads(base64.b64decode(orjson.loads(message["data"])["body"]))
                    seen.extend(body if isinstance(body, list) else [body])

        listening = asyncio.create_task(listen())
        try:
            yield seen
        finally:
            listening.cancel()


async def shell_of(client: Client, job: Job) -> Record | None:
    return next((record for record in await client.tree(job.id) if record.kind is Kind.SHELL), None)


async def submit(client: Client, workspace: Path) -> Job:
    options = JobOptions(cwd=workspace, allowed_tools=(f"Bash({COMMAND})",), replay=SCRIPT, title="A short title")
    return await client.submit("XYZZY-of-the-prompt", options)


@pytest.mark.cluster
async def test_flower_lists_our_tasks_without_prompts_and_terminates_one(system: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    await asyncio.gather(system.coordinator(), system.worker())
    async with (
        celery_events(system.url) as events,
        flower(system) as pages,
        Client.connect(system.url) as client,
    ):
        job = await submit(client, work)
        await until((work / "begun").exists, what="the command")

        async def running() -> bool:
            shell = await shell_of(client, job)
            return shell is not None and shell.lease is not None

        await until(running, what="a running command")
        shell = await shell_of(client, job)
        assert shell is not None

        async def listed() -> bool:
            return {shell.task_id, job.id} <= set((await pages.get("/api/tasks")).json())

        await until(listed, what="both tasks in Flower's list")
        tasks = (await pages.get("/api/tasks")).json()
        assert tasks[shell.task_id]["args"] == "shell: A task of kind sh"
        assert tasks[job.id]["args"] == "session: A short title"
        for page in ("/api/tasks", "/tasks", f"/task/{shell.task_id}", f"/task/{job.id}", "/workers", "/broker"):
            answer = await pages.get(page)
            assert answer.status_code == 200 and "XYZZY" not in answer.text, page
            async with httpx2.AsyncClient(base_url=pages.base_url) as stranger:
                assert (await stranger.get(page)).status_code == 401, page

        revoked = await pages.post(f"/api/task/revoke/{shell.task_id}", params={"terminate": "true"})
        assert revoked.status_code == 200
        async with asyncio.timeout(30):
            result = await job.result()
        assert (result.state, result.result) == (State.COMPLETED, "It was killed.")
        ended = await shell_of(client, job)
        assert ended is not None and ended.state is State.STOPPED
        assert [note.status for note in await Watched(client, job).notified()] == ["killed"]
        assert processes_in(work) == []
        told = {"task-sent", "task-received", "task-started", "task-revoked"}
        await until(lambda: told <= {event["type"] for event in events}, what="what Celery tells of a stopped command")
        assert "XYZZY" not in json.dumps(events)


@pytest.mark.cluster
async def test_a_task_revoked_while_no_worker_was_up_never_starts(system: Cluster, tmp_path: Path) -> None:
    await system.coordinator()
    async with flower(system) as pages, Client.connect(system.url) as client:
        job = await submit(client, tmp_path)

        async def queued() -> bool:
            shell = await shell_of(client, job)
            return shell is not None and shell.state is State.QUEUED

        await until(queued, what="a queued command")
        shell = await shell_of(client, job)
        assert shell is not None

        async def waiting() -> bool:
            return len(await client.transcript(job.id)) == 4

        await until(waiting, what="the session waiting for its task")
        async with httpx2.AsyncClient(base_url=pages.base_url) as stranger:
            assert (await stranger.post(f"/api/task/revoke/{shell.task_id}")).status_code == 401
        still = await shell_of(client, job)
        assert still is not None and still.state is State.QUEUED
        # Celery keeps a revocation in the memory of workers that are up; the console keeps it as a stop of the task.
        assert (await pages.post(f"/api/task/revoke/{shell.task_id}")).status_code == 200
        worker = await system.worker()
        async with asyncio.timeout(30):
            assert (await job.result()).result == "It was killed."
        await until(lambda: f"{shell.task_id} run 1 dropped" in worker.said(), what="its late message taken")
        assert [note.status for note in await Watched(client, job).notified()] == ["killed"]
        assert not (tmp_path / "begun").exists()
        ended = await shell_of(client, job)
        assert ended is not None and (ended.state, ended.fence) == (State.STOPPED, 0)
