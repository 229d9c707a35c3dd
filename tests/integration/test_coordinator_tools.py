"""The coordinator's four tools on whole processes: what each does, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions, JobResult

FOUR = {"AgentTool", "SendMessage", "TaskStop", "SyntheticOutput"}


class Play:
    """One job on a cluster with a stand-in for the model."""

    def __init__(self, client: Client, job: Job) -> None:
        self.client, self.job = client, job

    async def result(self, seconds: float = 30) -> JobResult:
        async with asyncio.timeout(seconds):
            return await self.job.result()

    async def results(self) -> list[str]:
        """The texts of all tool results in the session's transcript."""
        lines = await self.client.transcript(self.job.id)
        return [str(b["content"]) for line in lines for b in line.content if b["type"] == "tool_result"]

    async def said(self, text: str) -> bool:
        """Whether the session's transcript holds this text."""
        lines = await self.client.transcript(self.job.id)
        return any(block.get("text") == text for line in lines for block in line.content)

    async def task(self, kind: Kind) -> Record | None:
        return next((record for record in await self.client.tree(self.job.id) if record.kind is kind), None)


@asynccontextmanager
async def play(
    system: Cluster, workspace: Path, *lines: JsonObject, allow: tuple[str, ...] = ()
) -> AsyncIterator[Play]:
    await system.standin(script(*lines))
    await asyncio.gather(system.coordinator(), system.worker())
    async with Client.connect(system.url) as client:
        job = await client.submit("Do it.", JobOptions(cwd=workspace, allowed_tools=allow))
        yield Play(client, job)


@pytest.mark.cluster
async def test_a_coordinator_that_calls_bash_gets_an_error_and_starts_nothing(system: Cluster, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    lines = (
        reply("s", 1, use("Bash", command=f"touch {marker}")),
        reply("s", 2, dispatch("r", prompt="x"), dispatch("t", prompt="x"), dispatch("d", prompt="x")),
        reply("s", 3, say("I cannot."), expect=["no worker serves this kind: r", "kind: t", "kind: d"]),
    )
    async with play(system, tmp_path, *lines) as on:
        result = await on.result()
        assert (result.state, result.result) == (State.COMPLETED, "I cannot.")
        assert [denial.tool_name for denial in result.permission_denials] == ["Bash"]
        assert "there is no tool Bash" in (await on.results())[0]
        assert len(await on.client.tree(on.job.id)) == 1
    assert not marker.exists()
    offered = [{tool["name"] for tool in json.loads(json.dumps(body["tools"]))} for body in system.bodies()]
    assert len(offered) == 3 and all(tools == FOUR for tools in offered)


@pytest.mark.cluster
async def test_an_agent_reads_a_message_while_it_runs_and_after_it_has_ended(system: Cluster, tmp_path: Path) -> None:
    wait = "until test -e go; do sleep 0.05; done"
    agent = "{{task:s/1.0}}"
    early = use("SyntheticOutput", result="too early")
    lines = (
        reply("s", 1, dispatch("a", prompt="Wait.")),
        reply("s", 2, use("SendMessage", to=agent, message="hurry"), early),
        reply("s", 3, say("Waiting."), expect=["delivered", "still open"]),
        reply("s/1.0", 1, use("Bash", command=wait)),
        reply("s/1.0", 2, say("I hurried."), expect=["hurry"]),
        reply("s", 4, use("SendMessage", to=agent, message="again"), expect=["I hurried"]),
        reply("s/1.0", 1, say("Back again."), run=2, expect=["again"]),
        reply("s", 5, say("Done."), expect=["reopened"]),
        reply("s", 6, say("Done."), expect=["Back again"]),
    )
    async with play(system, tmp_path, *lines, allow=(f"Bash({wait})",)) as on:
        await until(lambda: on.said("Waiting."), what="the session waiting")
        (tmp_path / "go").touch()
        assert (await on.result()).result == "Done."
        task = await on.task(Kind.AGENT)
        assert task is not None and (task.run, task.state) == (2, State.COMPLETED)
        texts = [str(line.content) for line in await on.client.transcript(task.task_id)]
        assert sum("hurry" in text for text in texts) == 1
    second = [body for body in system.bodies() if "again" in str(body["messages"]) and "Wait." in str(body["messages"])]
    assert second and "hurry" in str(second[-1]["messages"]), "the new run has the whole old transcript"


@pytest.mark.cluster
async def test_a_command_reads_messages_until_it_has_ended(system: Cluster, tmp_path: Path) -> None:
    command = "read word; echo got $word; until test -e go; do sleep 0.05; done"
    shell = "{{task:s/1.0}}"
    lines = (
        reply("s", 1, dispatch("sh", command=command)),
        reply("s", 2, use("SendMessage", to=shell, message="plum")),
        reply("s", 3, say("Waiting."), expect=["delivered"]),
        reply("s", 4, use("SendMessage", to=shell, message="pear"), expect=["got plum"]),
        reply("s", 5, say("Done."), expect=["not sent: the command has ended"]),
    )
    async with play(system, tmp_path, *lines, allow=(f"Bash({command})",)) as on:
        await until(lambda: on.said("Waiting."), what="the session waiting")

        async def typed() -> bool:
            task = await on.task(Kind.SHELL)
            return task is not None and "got plum" in await on.client.output(task.task_id)

        await until(typed, what="the command's answer")
        (tmp_path / "go").touch()
        assert (await on.result()).result == "Done."


@pytest.mark.cluster
async def test_task_stop_ends_the_agent_and_its_command(system: Cluster, tmp_path: Path) -> None:
    command = "echo $$ > pid; exec sleep 300"
    lines = (
        reply("s", 1, dispatch("a", prompt="Sleep.")),
        reply("s", 2, say("Waiting.")),
        reply("s/1.0", 1, use("Bash", command=command)),
        reply("s", 3, use("TaskStop", task_id="{{task:s/1.0}}", reason="enough"), expect=["stop it"]),
        reply("s", 4, say("Stopped."), expect=["stopped"]),
    )
    async with play(system, tmp_path, *lines, allow=(f"Bash({command})",)) as on:
        await until((tmp_path / "pid").exists, what="the command's start")
        await on.job.send("stop it")
        result = await on.result()
        assert result.state is State.COMPLETED
        agent = await on.task(Kind.AGENT)
        assert agent is not None and agent.state is State.STOPPED
        lines_text = str(await on.client.transcript(on.job.id))
        assert lines_text.count("<status>killed</status>") == 1
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not Path(f"/proc/{pid}").exists(), what="the command's death")
