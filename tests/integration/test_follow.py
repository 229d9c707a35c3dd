"""What a client sees and says: events once each, stops, follow-ups, keys; and many jobs at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from celeriac.common.contract.events import Event
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.substrate.events import START
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.command import CommandLine
from celeriac.common.testing.scripts import agent, answer, call, line, script, shell, text
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.coordinator.stopping import StopVerdict
from celeriac.ops.chaos.watched import Watched, processes_in

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

SESSIONS = 10
ONCE = "echo line >> effect"


@pytest_asyncio.fixture(loop_scope="module")
async def client(shared: Cluster) -> AsyncIterator[Client]:
    async with Client.connect(shared.url) as connected:
        yield connected


async def submit(client: Client, folder: Path, *lines: JsonObject, allow: tuple[str, ...] = ()) -> Watched:
    rules = tuple(f"Bash({command})" for command in allow)
    options = JobOptions(cwd=folder, allowed_tools=rules, replay=script(*lines))
    return Watched(client, await client.submit("Do it.", options))


def runs_a_command(command: str) -> tuple[JsonObject, ...]:
    return (line("s", 1, shell(command)), line("s", 2, text("Waiting.")), line("s", 3, answer("Done.")))


async def events(client: Client, watched: Watched, after: str = START, most: int = 0) -> list[tuple[str, Event]]:
    """Events with their ids, to the end or `most`."""
    found = []
    async with aclosing(client.follow(watched.job.id, after)) as followed:
        async for each in followed:
            found.append((each.event_id, each))
            if len(found) == most:
                break
    return found


async def test_a_stopped_session_takes_everything_with_it(client: Client, tmp_path: Path) -> None:
    bash, command = "touch bash; sleep 300", "touch sh; sleep 300"
    lines = (
        line("s", 1, agent("Begin."), shell(command)),
        line("s", 2, text("Waiting.")),
        line("s/1.0", 1, call("Bash", command=bash)),
    )
    watched = await submit(client, tmp_path, *lines, allow=(bash, command))
    await until(lambda: (tmp_path / "bash").exists() and (tmp_path / "sh").exists(), seconds=40)
    stopped = await watched.job.stop()
    assert {line.task_id.partition("-")[0]: line.verdict for line in stopped} == dict.fromkeys(
        ("s", "a", "sh"), StopVerdict.STOPPED
    )
    assert len(stopped) == 3
    assert processes_in(tmp_path) == []
    assert {record.state for record in await client.tree(watched.job.id)} == {State.STOPPED}


async def test_each_event_is_seen_once_late_or_in_two_parts(client: Client, tmp_path: Path) -> None:
    command = "echo one; while test ! -e go; do sleep 0.05; done; echo two"
    watched = await submit(client, tmp_path, *runs_a_command(command), allow=(command,))
    first = await events(client, watched, most=6)
    (tmp_path / "go").touch()
    rest = await events(client, watched, after=first[-1][0])
    whole = await events(client, watched)
    assert [event_id for event_id, _ in [*first, *rest]] == [event_id for event_id, _ in whole]
    assert len({event_id for event_id, _ in whole}) == len(whole)
    ends = [event.task_id for _, event in whole if event.type == "result"]
    assert len(ends) == len(set(ends)) == 2


async def test_a_follow_up_opens_a_second_run(shared: Cluster, client: Client, tmp_path: Path) -> None:
    lines = (
        line("s", 1, text("The first answer.")),
        line("s", 1, text("The second answer."), run=2, expect=["And why?"]),
    )
    watched = await submit(client, tmp_path, *lines)
    assert (await watched.end()).result == "The first answer."
    said = CommandLine(tmp_path, {"CELERIAC_REDIS_URL": shared.url})
    assert said.run("send", watched.job.id, "And why?").code == 0
    ended = said.run("result", watched.job.id)
    assert (ended.code, ended.out) == (0, "The second answer.\n"), ended
    assert (await client.get(watched.job.id)).run == 2


async def test_a_key_used_twice_is_one_job(client: Client, tmp_path: Path) -> None:
    before = len(await client.list())
    options = JobOptions(cwd=tmp_path, idempotency_key="one", replay=script(line("s", 1, text("Done."))))
    jobs = await asyncio.gather(*(client.submit("Do it.", options) for _ in range(3)))
    assert len({job.id for job in jobs}) == 1
    assert (await Watched(client, jobs[0]).end()).result == "Done."
    assert (await client.submit("Do it.", options)).id == jobs[0].id
    assert len(await client.list()) == before + 1
    assert (await client.get(jobs[0].id)).run == 1


async def test_two_coordinators_run_many_sessions_once_each(shared: Cluster, client: Client, tmp_path: Path) -> None:
    await shared.coordinator("coordinator2")
    folders = [tmp_path / str(number) for number in range(SESSIONS)]
    for folder in folders:
        folder.mkdir()
    jobs = [await submit(client, folder, *runs_a_command(ONCE), allow=(ONCE,)) for folder in folders]
    results = await asyncio.gather(*(watched.end() for watched in jobs))
    assert {(result.state, result.result) for result in results} == {(State.COMPLETED, "Done.")}
    assert [(folder / "effect").read_text() for folder in folders] == ["line\n"] * SESSIONS
    for watched in jobs:
        assert len(await watched.notified()) == 1
        assert (await watched.task(Kind.SHELL)).fence == 1
