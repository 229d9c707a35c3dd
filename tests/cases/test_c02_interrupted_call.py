"""C02: whenever a run is interrupted, each call in its history has a result, and what comes next stands after them in
one legal message."""

import asyncio
from pathlib import Path

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import text_block
from celeriac.common.contract.task import State
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.llm.client import ApiMessage
from celeriac.common.llm.wire import dumps
from celeriac.common.testing import replies
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, use
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, says, tool_use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched
from celeriac.ops.standin.validator import validate

COMMAND = "echo begun >> effect.txt; sleep 60"
SCRIPT = replies.script(
    reply("s", 1, dispatch("a", prompt="Run it.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, use("TaskStop", task_id="{{task:s/1.0}}")),
    reply("s", 4, use("SendMessage", to="{{task:s/1.0}}", message="go on")),
    reply("s", 5, say("Waiting.")),
    reply("s", 6, use("SyntheticOutput", result="All done.")),
    reply("s/1.0", 1, say("I begin"), use("Bash", command=COMMAND)),
    reply("s/1.0", 1, say("I go on."), run=2, expect=["go on"]),
)


@pytest.mark.cluster
async def test_a_stopped_agent_that_is_told_to_go_on_has_a_legal_history(system: Cluster, tmp_path: Path) -> None:
    await system.standin(SCRIPT)
    await asyncio.gather(system.coordinator(), system.worker())
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    async with Client.connect(system.url) as client:
        job = await client.submit("Go.", JobOptions(cwd=workspace, allowed_tools=(f"Bash({COMMAND})",)))
        watched = Watched(client, job)
        await until((workspace / "effect.txt").exists, what="the command's first line")
        await job.send("stop it")
        assert (await watched.end()).state is State.COMPLETED
        agent = await watched.task(Kind.AGENT)
        told = await watched.notified()
    assert (agent.run, agent.state) == (2, State.COMPLETED)
    assert [one.status for one in told] == ["killed", "completed"]
    (body,) = system.bodies("s_1.0-2-1")
    messages = body["messages"]
    assert isinstance(messages, list)
    assert [message["role"] for message in messages if isinstance(message, dict)] == ["user", "assistant", "user"]
    last = messages[-1]
    assert isinstance(last, dict) and isinstance(last["content"], list)
    result, words = [part for part in last["content"] if isinstance(part, dict)]
    assert result["type"] == "tool_result" and result["is_error"] is True and "interrupted" in str(result["content"])
    assert (words["type"], words["text"]) == ("text", "go on")
    assert all(entry.get("status", 200) == 200 for entry in system.requests())


def is_legal(messages: tuple[ApiMessage, ...]) -> None:
    tools: list[JsonObject] = [{"name": name, "input_schema": {"type": "object"}} for name in ("Bash", "Read")]
    listed: list[JsonObject] = [{"role": message.role, "content": list(message.content)} for message in messages]
    body = dumps({"model": "m", "max_tokens": 1, "tools": [*tools], "messages": [*listed]})
    assert validate(body).reason == ""


async def interrupted(stage: Stage, probe: Probe, answer: Scripted, reason: AbortReason) -> tuple[ApiMessage, ...]:
    """The history that the model sees after the run was interrupted inside `probe`'s call and told to go on."""
    probe.gate = asyncio.Event()
    record = await stage.create()
    lease = await stage.claim(record)
    async with asyncio.timeout(10):
        playing = asyncio.ensure_future(stage.play(record, lease, [answer]))
        await probe.begun.wait()
        if reason is AbortReason.USER:
            await stage.substrate.records.request_stop(record.task_id, kind="user", reason="enough", op="stop")
            lease.poke()
        else:
            lease.node.abort(reason)
        await playing
    if reason is AbortReason.LEASE_LOST:
        await lease.release()
    probe.gate = None
    await stage.substrate.inboxes.send_message(record.task_id, "1", "go on", op="send", sender=None)
    now = await stage.substrate.records.get(record.task_id)
    model = await stage.play(now, await stage.claim(now), [says("done")])
    assert (await stage.substrate.records.get(record.task_id)).state is State.COMPLETED
    return model.requests[-1].messages


REASONS = [AbortReason.USER, AbortReason.SHUTDOWN, AbortReason.TIME_LIMIT, AbortReason.PARENT, AbortReason.LEASE_LOST]


@pytest.mark.parametrize("reason", REASONS)
async def test_one_call(reason: AbortReason, stage: Stage, bash: Probe) -> None:
    messages = await interrupted(stage, bash, Scripted([tool_use("t1", "Bash", text="a")]), reason)
    is_legal(messages)
    assert [block["type"] for block in messages[2].content] == ["tool_result", "text"]
    assert messages[2].content[0]["is_error"] is True
    assert messages[2].content[1] == text_block("go on")


@pytest.mark.parametrize("reason", REASONS)
async def test_some_calls_ended_some_running_some_not_begun(
    reason: AbortReason, stage: Stage, bash: Probe, read: Probe
) -> None:
    calls = [
        tool_use("t1", "Read", text="1"),
        tool_use("t2", "Read", text="2"),
        tool_use("t3", "Bash", text="3"),
        tool_use("t4", "Bash", text="4"),
        tool_use("t5", "Read", text="5"),
    ]
    messages = await interrupted(stage, bash, Scripted([text_block("many"), *calls]), reason)
    is_legal(messages)
    results = messages[2].content
    assert [block.get("tool_use_id") for block in results] == ["t1", "t2", "t3", "t4", "t5", None]
    assert [results[0]["content"], results[1]["content"]] == ["did 1", "did 2"]
    assert results[2]["is_error"] is True
    assert bash.calls.count("3") == 1


@pytest.mark.parametrize("reason", REASONS)
async def test_a_call_while_the_answer_still_streams(reason: AbortReason, stage: Stage, bash: Probe) -> None:
    answer = Scripted([text_block("first"), tool_use("t1", "Bash", text="a")], gate=asyncio.Event())
    messages = await interrupted(stage, bash, answer, reason)
    is_legal(messages)
    assert [block["type"] for block in messages[1].content] == ["text", "tool_use"]
    assert [block["type"] for block in messages[2].content] == ["tool_result", "text"]


@pytest.mark.parametrize("reason", REASONS)
async def test_a_reading_call_while_the_answer_still_streams(reason: AbortReason, stage: Stage, read: Probe) -> None:
    answer = Scripted([text_block("first"), tool_use("t1", "Read", text="a")], gate=asyncio.Event())
    messages = await interrupted(stage, read, answer, reason)
    is_legal(messages)
    assert messages[-1].content[-1] == text_block("go on")
