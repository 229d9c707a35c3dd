"""The coordinator's four tools on a real cluster: nothing else is offered, and each does what SPEC 3 says."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.command import CommandLine
from celeriac.common.testing.scripts import agent, answer, call, line, script, shell, text
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched, processes_in

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

FOUR = {"AgentTool", "SendMessage", "TaskStop", "SyntheticOutput"}
HELD = "touch begun; while test ! -e go; do sleep 0.05; done"
"""A command that the test sees begin and lets end."""


@asynccontextmanager
async def job(system: Cluster, folder: Path, *lines: JsonObject, allow: str = "") -> AsyncIterator[Watched]:
    """A job with its own replay; the command `allow` may run."""
    rules = (f"Bash({allow})",) if allow else ()
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=folder, allowed_tools=rules, replay=script(*lines))
        yield Watched(client, await client.submit("Do it.", options))


OVERSTEPPING = script(
    line("s", 1, call("Bash", command="touch marker")),
    line("s", 2, *(call("AgentTool", kind=kind, description="x", prompt="y") for kind in ("r", "t", "d"))),
    line("s", 3, agent("The first prompt.")),
    line("s", 4, text("Waiting.")),
    line("s", 5, call("SendMessage", to="{{task:s/3.0}}", message="The second request.")),
    line("s", 6, text("Waiting again.")),
    line("s", 7, answer("The end.")),
    line("s/3.0", 1, call("Glob", pattern="*.nothing")),
    line("s/3.0", 2, text("The first report.")),
    line("s/3.0", 1, text("The second report."), run=2),
)


@pytest.mark.asyncio(loop_scope="function")
async def test_a_coordinator_has_four_tools_and_an_agent_its_past(system: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    await system.standin(OVERSTEPPING)
    await system.coordinator()
    await system.worker()
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=work, allowed_tools=("Bash(touch marker)",))
        watched = Watched(client, await client.submit("Do it.", options))
        assert (await watched.end()).state is State.COMPLETED
        bash, *kinds = (await watched.results())[:4]
        assert bash.is_error
        assert all(kind.is_error and "no worker serves this kind" in kind.text for kind in kinds)
        assert [record.kind for record in await client.tree(watched.job.id)] == [Kind.SESSION, Kind.AGENT]
        assert len(await watched.notified()) == 2

    said = CommandLine(tmp_path, {"CELERIAC_REDIS_URL": system.url}).run(
        "result", watched.job.id, "--output-format", "json"
    )
    denials = json.loads(said.out)["permission_denials"]
    assert [denial["tool_name"] for denial in denials] == ["Bash"]
    assert not (work / "marker").exists()
    check_requests(system)


def check_requests(system: Cluster) -> None:
    """What the model was offered and shown."""
    assert {entry["status"] for entry in system.requests()} == {200}
    for turn in range(1, 8):
        (body,) = system.bodies(f"s-1-{turn}")
        assert sorted(tool["name"] for tool in json.loads(json.dumps(body["tools"]))) == sorted(FOUR)
    (reopened,) = system.bodies("s_3.0-2-1")
    messages = json.dumps(reopened["messages"])
    places = [messages.find(each) for each in ("The first prompt.", "Glob", "The first report.", "The second request.")]
    assert -1 not in places
    assert places == sorted(places)


async def test_a_message_to_a_running_agent_is_read_in_its_next_turn(shared: Cluster, tmp_path: Path) -> None:
    lines = (
        line("s", 1, agent("Begin.")),
        line("s", 2, text("Waiting.")),
        line("s", 3, call("SendMessage", to="{{task:s/1.0}}", message="And one thing more."), expect=["Tell it."]),
        line("s", 4, text("Waiting.")),
        line("s", 5, answer("Done."), expect=["<status>completed"]),
        line("s/1.0", 1, call("Bash", command=HELD)),
        line("s/1.0", 2, text("Both done."), expect=["And one thing more."]),
    )
    async with job(shared, tmp_path, *lines, allow=HELD) as watched:
        await until((tmp_path / "begun").exists, seconds=40)
        await watched.client.send(watched.job.id, "Tell it.")
        await watched.says("delivered")
        (tmp_path / "go").touch()
        assert (await watched.end()).result == "Done."
        assert (await watched.task(Kind.AGENT)).run == 1
        assert len(await watched.notified()) == 1


async def test_a_message_to_a_command_is_its_input_until_it_ends(shared: Cluster, tmp_path: Path) -> None:
    command = "echo ready; read x; echo got $x"
    lines = (
        line("s", 1, shell(command)),
        line("s", 2, text("Waiting.")),
        line("s", 3, call("SendMessage", to="{{task:s/1.0}}", message="pears"), expect=["Tell it."]),
        line("s", 4, text("Waiting.")),
        line("s", 5, call("SendMessage", to="{{task:s/1.0}}", message="plums"), expect=["got pears"]),
        line("s", 6, answer("Done.")),
    )
    async with job(shared, tmp_path, *lines, allow=command) as watched:
        task = (await watched.task(Kind.SHELL)).task_id

        async def ready() -> bool:
            return "ready" in await watched.client.output(task)

        await until(ready, seconds=40)
        await watched.client.send(watched.job.id, "Tell it.")
        assert (await watched.end()).result == "Done."
        assert "got pears" in await watched.client.output(task)
        late = (await watched.results())[2]
        assert late.is_error
        assert "not sent" in late.text


async def test_a_stopped_agent_and_its_command_are_gone(shared: Cluster, tmp_path: Path) -> None:
    command = "touch begun; sleep 300"
    lines = (
        line("s", 1, agent("Begin.")),
        line("s", 2, text("Waiting.")),
        line("s", 3, call("TaskStop", task_id="{{task:s/1.0}}", reason="no longer wanted"), expect=["Stop it."]),
        line("s", 4, answer("Done."), expect=["stopped", "<status>killed"]),
        line("s/1.0", 1, call("Bash", command=command)),
    )
    async with job(shared, tmp_path, *lines, allow=command) as watched:
        await until((tmp_path / "begun").exists, seconds=40)
        assert processes_in(tmp_path)
        await watched.client.send(watched.job.id, "Stop it.")
        assert (await watched.end()).result == "Done."
        stopped = await watched.task(Kind.AGENT)
        assert (await watched.results())[1].text == f"{stopped.task_id}: stopped"
        assert [note.status for note in await watched.notified()] == ["killed"]
        assert processes_in(tmp_path) == []


async def test_an_answer_with_an_open_task_is_refused_by_its_name(shared: Cluster, tmp_path: Path) -> None:
    lines = (
        line("s", 1, shell("sleep 300")),
        line("s", 2, answer("Too early.")),
        line("s", 3, call("TaskStop", task_id="{{task:s/1.0}}")),
        line("s", 4, answer("Done.")),
    )
    async with job(shared, tmp_path, *lines, allow="sleep 300") as watched:
        assert (await watched.end()).result == "Done."
        task = await watched.task(Kind.SHELL)
        refused = (await watched.results())[1]
        assert refused.is_error
        assert task.task_id in refused.text
        assert (task.state, len(await watched.notified())) == (State.STOPPED, 1)
