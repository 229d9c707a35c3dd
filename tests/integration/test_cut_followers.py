"""A follower that is cut off again and again sees every event once: real processes, real kills of the server."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis

from celeriac.common.contract.events import Event
from celeriac.common.contract.task import State
from celeriac.common.substrate.events import START
from celeriac.common.testing.cluster import CELERIAC, Cluster
from celeriac.common.testing.scripts import agent, answer, call, line, script, text
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions

CUTS = 20
RESTARTS = 4
"""Of them, kills of the server: each costs seconds."""
READ_SECONDS = 60.0
"""How long the next events may take: a restarted server, a lease time, a busy machine."""


def gated(turns: int) -> tuple[str, tuple[str, ...]]:
    """A replay whose agent runs a command in each of so many turns; command N ends when the file `go.N` is there."""
    commands = [f"until test -e go.{turn}; do sleep 0.05; done" for turn in range(1, turns + 1)]
    lines = [line("s/1.0", turn, call("Bash", command=command)) for turn, command in enumerate(commands, 1)]
    whole = script(
        line("s", 1, agent("Begin.")),
        line("s", 2, text("Waiting.")),
        line("s", 3, answer("Done.")),
        *lines,
        line("s/1.0", turns + 1, text("All of them ran.")),
    )
    return whole, tuple(f"Bash({command})" for command in commands)


async def submit(client: Client, folder: Path, turns: int) -> Job:
    replay, rules = gated(turns)
    return await client.submit("Do it.", JobOptions(cwd=folder, allowed_tools=rules, replay=replay))


class Following:
    """A follower that can be closed and opened again where it was, as a program does that keeps the id it has seen."""

    def __init__(self, url: str, job: str) -> None:
        self.events: list[Event] = []
        self.ended = asyncio.Event()
        self._url = url
        self._job = job
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        assert self._reading is not None
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading

    async def more(self, than: int) -> None:
        """Wait for an event beyond the first `than`; what ended the reading is raised."""

        def arrived() -> bool:
            if self._reading is not None and self._reading.done():
                self._reading.result()
            return len(self.events) > than or self.ended.is_set()

        await until(arrived, seconds=READ_SECONDS, what=f"more than {than} events")

    async def _read(self) -> None:
        after = self.events[-1].event_id if self.events else START
        async with Client.connect(self._url) as client, aclosing(client.job(self._job).follow(after)) as events:
            async for event in events:
                self.events.append(event)
        self.ended.set()


@asynccontextmanager
async def following(url: str, job: str) -> AsyncIterator[Following]:
    follower = Following(url, job)
    await follower.open()
    try:
        yield follower
    finally:
        await follower.close()


@pytest.mark.cluster
async def test_a_follower_that_is_cut_twenty_times_sees_every_event_once(
    system: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    await asyncio.gather(system.coordinator(), system.worker())
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    async with Client.connect(system.url) as client:
        job = await submit(client, workspace, CUTS)

    async def reopen(follower: Following) -> None:
        await follower.close()
        await follower.open()

    async def kill_connections(_: Following) -> None:
        async with Redis.from_url(system.url) as raw:
            assert await raw.client_kill_filter(_type="normal", skipme=True) >= 1

    async def restart(_: Following) -> None:
        await asyncio.to_thread(system.server.kill)
        await asyncio.to_thread(system.server.start)

    plain: list[Callable[[Following], Awaitable[None]]] = [reopen, kill_connections]
    cuts = [restart if number % (CUTS // RESTARTS) == 0 else plain[number % 2] for number in range(1, CUTS + 1)]
    async with asyncio.timeout(220), following(system.url, job.id) as follower:
        for number, cut in enumerate(cuts, 1):
            await follower.more(len(follower.events) if number > 1 else 0)
            await cut(follower)
            (workspace / f"go.{number}").touch()
        await follower.ended.wait()
    async with Client.connect(system.url) as client:
        whole = [event async for event in client.job(job.id).follow()]
        assert (await client.get(job.id)).state is State.COMPLETED
        told = [event for event in whole if event.type == "result"]
    assert [event.event_id for event in follower.events] == [event.event_id for event in whole]
    assert follower.events == whole
    assert len({event.event_id for event in whole}) == len(whole) > 2 * CUTS
    assert len(told) == 2
    assert {cut.__name__: cuts.count(cut) for cut in cuts} == {"restart": 4, "reopen": 8, "kill_connections": 8}
    record_property("cuts", f"{CUTS} cuts ({RESTARTS} of them restarts of the server), {len(whole)} events, each once")


@pytest.mark.cluster
async def test_a_followed_command_line_is_killed_and_goes_on_where_it_was(shared: Cluster, tmp_path: Path) -> None:
    turns, lines = 4, list[str]()
    async with Client.connect(shared.url) as client:
        job = await submit(client, tmp_path, turns)
        for number in range(turns + 1):
            after = ("--after", json.loads(lines[-1])["event_id"]) if lines else ()
            said = tmp_path / f"said-{number}"
            with said.open("wb") as out:
                follower = await asyncio.create_subprocess_exec(
                    CELERIAC, "follow", job.id, "--output-format", "stream-json", *after, env=shared.environ, stdout=out
                )
            if number < turns:
                await until(lambda said=said: b"\n" in said.read_bytes(), seconds=30, what="a line")  # type: ignore[misc]  # a default binds the loop's name
                follower.send_signal(signal.SIGKILL)
                (tmp_path / f"go.{number + 1}").touch()
            async with asyncio.timeout(60):
                assert await follower.wait() == (-signal.SIGKILL if number < turns else 0)
            lines += said.read_text().rpartition("\n")[0].splitlines()
        whole = [event.event_id async for event in job.follow()]
    seen = [json.loads(text)["event_id"] for text in lines]
    assert seen == whole
    assert json.loads(lines[-1])["result"] == "Done."
