"""C74: whatever breaks in a worker, its parent is told of the end with the reason, and never waits for ever."""

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.notification import parse
from celeriac.common.contract.task import Limits, State
from celeriac.common.substrate.leases import Terms
from celeriac.common.substrate.types import ClaimRefusal
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.points import fail
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.runs import Probe, Stage, Words
from celeriac.common.testing.scripted import Scripted, says, tool_use
from celeriac.common.testing.substrate_kit import Kit
from celeriac.common.testing.waiting import until
from celeriac.common.tools.base import ToolContext, ToolResult
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched


class Bad(Probe):
    """A tool that breaks in a way that no tool should."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("Bash", changes=True)
        self._error = error

    async def run(self, i: Words, ctx: ToolContext) -> ToolResult:
        raise self._error


async def told(kit: Kit, stage: Stage, point: str | None, *answers: Scripted) -> tuple[str, str, str | None]:
    """(status, summary, result) of an agent that was run with a defect at this point, as its parent gets it."""
    session = await kit.owned_session()
    agent = await kit.agent(session)
    record = await kit.substrate.records.get(agent)
    lease = await stage.claim(record)
    async with asyncio.timeout(20):
        if point is None:
            await stage.play(record, lease, answers)
        else:
            with fail(point, RuntimeError("a defect"), agent):
                await stage.play(record, lease, answers)
    (entry,) = await kit.substrate.inboxes.unread(session.task_id)
    notification = parse(entry.text)
    assert notification.task_id == agent
    return notification.status, notification.summary, notification.result


ATTEMPTS = Terms().max_attempts + 2
"""How often a task is tried that no attempt ends: the first time, and each lease that is lost counts at the next."""
WORK = (Scripted([tool_use("t1", "Bash", text="a")]), says("the result"))


DEFECTS = [
    KeyError("a field"),
    RecursionError(),
    MemoryError(),
    ValueError("half a pair \ud800, </result>, and much: " + "x" * 100_000),
]


@pytest.mark.parametrize("point", ["emit.before", "finish.before"])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: type(defect).__name__)
async def test_any_defect_after_the_last_answer_is_the_reason_of_the_failure(
    defect: Exception, point: str, kit: Kit
) -> None:
    session = await kit.owned_session()
    agent = await kit.agent(session)
    stage = Stage(kit.substrate, [])
    with fail(point, defect, agent):
        await stage.play(await kit.substrate.records.get(agent), await kit.claim(agent), [says("the result")])
    (entry,) = await kit.substrate.inboxes.unread(session.task_id)
    note = parse(entry.text)
    assert (note.task_id, note.status) == (agent, "failed")
    assert type(defect).__name__ in note.summary and len(note.summary) < 10_000


async def test_a_defect_that_comes_again_whoever_tries_ends_the_task_as_poison(kit: Kit) -> None:
    """The failure that would tell of it cannot be stored either: its lease runs out, and others try."""
    session = await kit.owned_session()
    agent = await kit.agent(session)
    stage = Stage(kit.substrate, [])
    with ExitStack() as defects:
        for _ in range(ATTEMPTS):
            for _ in ("the result", "the failure"):
                defects.enter_context(fail("finish.before", RuntimeError("a defect"), agent))
            with pytest.raises(RuntimeError, match="a defect"):
                await stage.play(await kit.substrate.records.get(agent), await kit.claim(agent), [says("the result")])
            await kit.expire(agent)
        assert await kit.substrate.claim(agent, 1, process="w") is ClaimRefusal.POISON
    (entry,) = await kit.substrate.inboxes.unread(session.task_id)
    assert (parse(entry.text).status, "poison" in parse(entry.text).summary) == ("failed", True)


@pytest.mark.parametrize("point", ["finish.before", "append.before", "draft.before", "tool_done.before"])
async def test_a_defect_before_something_is_stored(point: str, twin_kit: Kit) -> None:
    stage = Stage(twin_kit.substrate, [Probe("Bash", changes=True)])
    status, summary, result = await told(twin_kit, stage, point, *WORK)
    if point in {"draft.before", "tool_done.before"}:  # inside the call: the model is told, and goes on
        assert (status, result) == ("completed", "the result")
    else:
        assert status == "failed" and "internal error: RuntimeError: a defect" in summary


async def test_a_defect_after_the_end_was_stored_tells_it_once(twin_kit: Kit) -> None:
    stage = Stage(twin_kit.substrate, [Probe("Bash", changes=True)])
    status, _, result = await told(twin_kit, stage, "finish.after", *WORK)
    assert (status, result) == ("completed", "the result")


async def test_a_model_that_has_a_defect(twin_kit: Kit) -> None:
    stage = Stage(twin_kit.substrate, [])
    broken = Scripted([], failure=ZeroDivisionError("by zero"))  # type: ignore[arg-type]  # a defect
    status, summary, _ = await told(twin_kit, stage, None, broken)
    assert status == "failed" and "ZeroDivisionError: by zero" in summary


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), OSError(24, "too many files"), KeyError("k")])
async def test_a_tool_that_breaks_is_told_to_the_model(error: BaseException, twin_kit: Kit) -> None:
    status, _, result = await told(twin_kit, Stage(twin_kit.substrate, [Bad(error)]), None, *WORK)
    assert (status, result) == ("completed", "the result")


async def test_a_task_that_breaks_every_worker_ends_as_poison(twin_kit: Kit) -> None:
    session = await twin_kit.owned_session()
    agent = await twin_kit.agent(session)
    for _ in range(6):
        await twin_kit.substrate.claim(agent, None, process="a worker that dies")
        await twin_kit.expire(agent)
    (entry,) = await twin_kit.substrate.inboxes.unread(session.task_id)
    assert (parse(entry.text).status, "poison" in parse(entry.text).summary) == ("failed", True)


COMMAND = "echo begun >> effect.txt"
SCRIPT = script(
    reply("s", 1, dispatch("a", prompt="Run it.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, say("All done.")),
    reply("s/1.0", 1, use("Bash", command=COMMAND)),
    reply("s/1.0", 2, say("It was run."), pace_ms=400),
)


@pytest.mark.cluster
async def test_a_server_that_is_away_when_the_result_is_stored(system: Cluster, tmp_path: Path) -> None:
    """For longer than a lease: the result is stored by the same owner or the next, and told once."""
    await asyncio.gather(system.coordinator(), system.worker())
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=tmp_path, allowed_tools=(f"Bash({COMMAND})",), replay=SCRIPT)
        watched = Watched(client, await client.submit("Go.", options))
        agent = await watched.task(Kind.AGENT)

        async def answered_by_the_model() -> bool:
            return (await client.get(agent.task_id)).tlen >= 3  # the last answer streams now

        await until(answered_by_the_model, what="the agent's last answer")
        await asyncio.to_thread(system.server.kill)
        await until(
            lambda: system.members["worker"].said().count("lease"), seconds=15, what="a lease that was given up"
        )
        await asyncio.to_thread(system.server.start)
        assert (await watched.end()).state is State.COMPLETED
        assert [(one.task_id, one.status) for one in await watched.notified()] == [(agent.task_id, "completed")]
    assert (tmp_path / "effect.txt").read_text().split() == ["begun"]


@pytest.mark.cluster
async def test_a_worker_that_hangs_is_ended_by_the_deadline(system: Cluster, tmp_path: Path) -> None:
    """Every task of a limited job has the job's deadline; a supervisor keeps it, whatever the worker does."""
    await asyncio.gather(system.coordinator(), system.worker())
    async with Client.connect(system.url) as client:
        replay = SCRIPT.replace('"pace_ms":400', '"pace_ms":100000')
        options = JobOptions(cwd=tmp_path, allowed_tools=(f"Bash({COMMAND})",), replay=replay, limits=Limits(seconds=6))
        watched = Watched(client, await client.submit("Go.", options))
        await until((tmp_path / "effect.txt").exists, what="the command")
        system.members["worker"].signal(signal.SIGSTOP)
        result = await watched.end()
        assert (result.state, result.limited) == (State.FAILED, True)

        async def agent_has_ended() -> bool:
            return (await watched.task(Kind.AGENT)).state.terminal

        await until(agent_has_ended, what="the end of the task whose worker hangs")
