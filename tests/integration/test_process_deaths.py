"""Further races of PROTOCOL 8 between whole processes: what is held at a named point is killed, paused or overtaken
there. The four messages that race are in test_process_races.py."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import Outcome, State
from celeriac.common.runtime.resume import EFFECT_UNKNOWN
from celeriac.common.substrate.types import SendStatus
from celeriac.common.testing.points import hold
from celeriac.common.testing.replies import answer, dispatch, reply, say, use
from celeriac.common.testing.substrate_checker import World
from celeriac.common.testing.waiting import until
from celeriac.ops.chaos.race import Race, race

pytestmark = pytest.mark.cluster

COMMAND = "echo start >> effect.txt; sleep 300"
SHORT = "echo start >> effect.txt"
ALLOWED = (f"Bash({COMMAND})", f"Bash({SHORT})")


def effect(it: Race) -> list[str]:
    file = it.workspace / "effect.txt"
    return file.read_text().split() if file.exists() else []


async def told(it: Race) -> list[tuple[str, str]]:
    return [(task, status) for task, status, _ in await it.notified()]


async def outcome(it: Race) -> Outcome:
    found = (await it.record(it.session)).outcome
    assert found is not None
    return found


def written(world: World) -> dict[TaskId, tuple[int, tuple[Line, ...], Mapping[int, Outcome]]]:
    """What was done in the end, by task: runs, transcripts, outcomes."""
    return {task.id: (task.run, task.lines, task.outcomes) for task in world.tasks.values()}


def working(command: str) -> tuple[JsonObject, ...]:
    """An agent that runs one command."""
    return (
        reply("s", 1, dispatch("a", prompt="Begin.")),
        reply("s", 2, say("Waiting.")),
        reply("s", 3, answer("Done.")),
        reply("s/1.0", 1, use("Bash", command=command), repeat=9),
        reply("s/1.0", 2, say("The report."), repeat=9),
    )


# ── the coordinator dies while it dispatches ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["create.before", "create.after", "wake.before", "wake.after", "append.before"])
async def test_a_task_is_dispatched_once_wherever_its_coordinator_dies(point: str, tmp_path: Path) -> None:
    """`append.before`: the append with the result of the dispatch."""
    async with race(tmp_path, *working(SHORT), coordinators=2, allow=ALLOWED) as it:
        first = "create.before" if point == "append.before" else point
        with it.hold(first, it.agent) as dispatching, it.hold("finish.before", it.agent) as finishing:
            await it.submit()
            pid = await dispatching.reached()
            if first != point:
                with it.hold(point, it.session) as later:
                    dispatching.release()
                    assert await later.reached() == pid
            it.system.kill(pid)
            await it.watched.says("Waiting.")
            finishing.release()
        world = await it.all_end()
        assert set(world.tasks) == {it.session, it.agent}
        assert effect(it) == ["start"]
        assert await told(it) == [(it.agent, "completed")]
        assert (await outcome(it)).text == "Done."


async def test_a_coordinator_that_dies_before_its_answer_is_stored_has_dispatched_nothing(tmp_path: Path) -> None:
    async with race(tmp_path, *working(SHORT), coordinators=2, allow=ALLOWED) as it:
        with it.hold("draft.before", it.session) as storing:
            await it.submit()
            it.system.kill(await storing.reached())
        world = await it.all_end()
        (child,) = set(world.tasks) - {it.session}
        assert child != it.agent, "the answer that was asked for again has ids of its own"
        assert await told(it) == [(child, "completed")]


@pytest.mark.parametrize("point", ["claim.before", "claim.after"])
async def test_a_session_whose_first_coordinator_dies_at_its_claim_is_claimed_by_another(
    point: str, tmp_path: Path
) -> None:
    async with race(tmp_path, reply("s", 1, answer("Done.")), coordinators=2) as it:
        with it.hold(point, it.session) as claiming:
            await it.submit()
            it.system.kill(await claiming.reached())
        await it.all_end()
        assert (await it.record(it.session)).fence == (1 if point == "claim.before" else 2)
        assert await it.asked("s") == 1


async def test_a_coordinator_that_comes_too_late_to_its_claim_leaves_the_session_alone(tmp_path: Path) -> None:
    async with race(tmp_path, reply("s", 1, answer("Done.")), coordinators=2) as it:
        with it.hold("claim.before", it.session) as claiming, it.hold("finish.before", it.session) as finishing:
            await it.submit()
            late = await claiming.reached()
            assert await finishing.reached() != late
            claiming.release()
            finishing.release()
        await it.all_end()
        assert ((await it.record(it.session)).fence, await it.asked("s")) == (1, 1)


# ── a paused coordinator wakes up when another has its session ───────────────────────────────────────────────────

PAUSED = {
    "create.before": (
        reply("s", 1, dispatch("a", prompt="Begin.")),
        reply("s", 2, say("Waiting.")),
        reply("s", 3, answer("Done.")),
        reply("s/1.0", 1, say("The report.")),
    ),
    "send_message.before": (
        reply("s", 1, dispatch("a", prompt="Begin."), use("SendMessage", to="{{task:s/1.0}}", message="More.")),
        reply("s", 2, say("Waiting.")),
        reply("s", 3, answer("Done.")),
        reply("s", 4, answer("Done.")),
        reply("s/1.0", 1, say("The report."), repeat=9),
        reply("s/1.0", 2, say("The report.")),
        reply("s/1.0", 1, say("The report."), run=2),
    ),
    "request_stop.before": (
        reply("s", 1, dispatch("a", prompt="Begin."), use("TaskStop", task_id="{{task:s/1.0}}")),
        reply("s", 2, say("Waiting.")),
        reply("s", 3, answer("Done.")),
        reply("s/1.0", 1, use("Bash", command=COMMAND)),
    ),
}


@pytest.mark.parametrize("point", PAUSED)
async def test_a_paused_coordinator_dispatches_sends_and_stops_nothing_late(point: str, tmp_path: Path) -> None:
    async with race(tmp_path, *PAUSED[point], coordinators=2, allow=ALLOWED) as it:
        with it.hold(point, it.agent) as requesting:
            await it.submit()
            pid = await requesting.reached()
            (paused,) = [member for member in it.system.members.values() if member.pid == pid]
            paused.signal(signal.SIGSTOP)
            await it.ends(it.session)
            before = written(await it.world())
            requesting.release()
            paused.signal(signal.SIGCONT)
            await until(lambda: "no longer" in paused.said(), what="its hearing that it lost the session")
        world = await it.all_end(*(["More."] if point == "send_message.before" else []))
        assert written(world) == before
        assert set(before) == {it.session, it.agent}
        assert (await outcome(it)).text in {"Done.", "Waiting."}


# ── stops ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stop_of_a_task_whose_worker_is_dead_leaves_nothing_to_claim(tmp_path: Path) -> None:
    async with race(tmp_path, *working(COMMAND), workers=2, allow=ALLOWED) as it:
        await it.submit()
        await until(lambda: effect(it), seconds=40, what="the command's first line")
        lease = (await it.record(it.agent)).lease
        assert lease is not None
        with it.gate("claim.before", it.agent) as claiming:
            it.system.members[lease.process.partition("@")[0]].kill()
            await claiming.reached()
            (line,) = await it.client.stop(it.agent, "enough")
            claiming.release()
        await it.all_end()
        agent = await it.record(it.agent)
        assert (line.task_id, agent.state, agent.fence) == (it.agent, State.STOPPED, 1)
        assert effect(it) == ["start"]
        assert await told(it) == [(it.agent, "killed")]


@pytest.mark.parametrize("die", [False, True])
async def test_a_stop_before_the_finish_wins_whether_or_not_the_worker_lives_to_hear_it(
    die: bool, tmp_path: Path
) -> None:
    async with race(tmp_path, *working(SHORT), allow=ALLOWED) as it:
        with it.hold("finish.before", it.agent) as finishing:
            await it.submit()
            pid = await finishing.reached()
            stopping = asyncio.create_task(it.client.stop(it.agent, "enough"))

            async def accepted() -> bool:
                return (await it.record(it.agent)).stop is not None

            await until(accepted, what="the stop accepted")
            if die:
                it.system.kill(pid)
            else:
                finishing.release()
            await stopping
        await it.all_end()
        ended = (await it.record(it.agent)).outcome
        assert ended is not None
        assert (ended.state, ended.text) == (State.STOPPED, None if die else "The report.")
        assert await told(it) == [(it.agent, "killed")]


async def test_a_session_that_dies_while_it_ends_stopped_is_ended_with_all_below(tmp_path: Path) -> None:
    async with race(tmp_path, *working(COMMAND), coordinators=2, allow=ALLOWED) as it:
        await it.submit()
        await until(lambda: effect(it), seconds=40, what="the command's first line")
        await it.watched.says("Waiting.")
        with it.hold("finish.before", it.session) as finishing:
            stopping = asyncio.create_task(it.client.stop(it.session, "enough"))
            it.system.kill(await finishing.reached())
            await stopping
        world = await it.all_end()
        assert {task.state for task in world.tasks.values()} == {State.STOPPED}
        assert world.tasks[it.session].record.inbox == (f"n:{it.agent}:1",)


async def test_a_stop_tells_of_the_run_that_it_ended_though_the_user_goes_on_at_once(tmp_path: Path) -> None:
    lines = (*working(COMMAND), reply("s", 1, answer("Continued."), run=2, expect=["Go on."]))
    async with race(tmp_path, *lines, allow=ALLOWED) as it:
        await it.submit()
        await until(lambda: effect(it), seconds=40, what="the command's first line")
        with hold("request_stop.after", it.session) as asked, it.gate("claim.before", it.session) as second:
            stopping = asyncio.create_task(it.client.stop(it.session, "enough"))
            await asked.reached.wait()
            await it.ends(it.session)
            await it.ends(it.agent)
            assert (await it.tell("Go on.")).status is SendStatus.REOPENED
            asked.release()
            verdicts = {line.task_id: line.verdict for line in await stopping}
            assert not (await it.record(it.session)).state.terminal
            second.release()
        assert verdicts == {it.session: "stopped", it.agent: "stopped"}
        await it.all_end("Go on.")
        assert ((await it.record(it.session)).run, (await outcome(it)).text) == (2, "Continued.")


STOPPED_TWICE = (
    reply("s", 1, dispatch("a", prompt="Begin."), use("TaskStop", task_id="{{task:s/1.0}}", reason="not needed")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, answer("Done.")),
    reply("s/1.0", 1, say("The report."), run=2, expect=["On second thoughts"]),
)


async def stop_twice(it: Race) -> None:
    """The coordinator dies when it has stopped the agent; before the next one repeats that, the agent is reopened."""
    with it.gate("claim.before", it.agent) as claiming, it.hold("request_stop.after", it.agent) as stopping:
        await it.submit()
        pid = await stopping.reached()
        assert (await it.record(it.agent)).state is State.STOPPED
        with it.hold("request_stop.before", it.agent) as again:
            it.system.kill(pid)
            await again.reached()
            reopened = await it.client.send(it.agent, "On second thoughts, go on.")
            assert (reopened.status, reopened.run) == (SendStatus.REOPENED, 2)
            again.release()
        await it.watched.says("Waiting.")
        claiming.release()
    await it.all_end("On second thoughts")
    agent = await it.record(it.agent)
    assert (agent.state, agent.run) == (State.COMPLETED, 2)
    assert await told(it) == [(it.agent, "killed"), (it.agent, "completed")]
    assert (await it.watched.results())[1].text == f"{it.agent}: stopped"


async def test_the_same_task_stop_after_a_takeover_spares_a_run_opened_meanwhile(tmp_path: Path) -> None:
    async with race(tmp_path, *STOPPED_TWICE, coordinators=2) as it:
        await stop_twice(it)


async def test_a_task_stop_that_is_not_remembered_stops_the_run_opened_meanwhile(tmp_path: Path) -> None:
    async with race(tmp_path, *STOPPED_TWICE, coordinators=2, mutation="requests are not remembered") as it:
        with pytest.raises(AssertionError):
            await stop_twice(it)


# ── two messages at once ─────────────────────────────────────────────────────────────────────────────────────────

TWO = (
    reply("s", 1, dispatch("a", prompt="Begin.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, use("SendMessage", to="{{task:s/1.0}}", message="The session's."), expect=["<status>completed"]),
    reply("s", 4, say("Waiting again.")),
    reply("s", 5, answer("Done.")),
    reply("s/1.0", 1, say("The report.")),
    reply("s/1.0", 1, say("Both read."), run=2, expect=["The user's.", "The session's."]),
)


@pytest.mark.parametrize("die", [False, True])
async def test_two_messages_to_an_ended_task_are_one_run_with_both(die: bool, tmp_path: Path) -> None:
    async with race(tmp_path, *TWO, coordinators=2) as it:
        with it.hold("send_message.before", it.agent) as sending:
            await it.submit()
            pid = await sending.reached()
            with it.gate("claim.before", it.agent) as claiming:
                first = await it.client.send(it.agent, "The user's.")
                if die:
                    it.system.kill(pid)
                else:
                    sending.release()
                await it.watched.says("Waiting again.")
                claiming.release()
        assert (first.status, first.run) == (SendStatus.REOPENED, 2)
        await it.all_end("The user's.", "The session's.")
        words = await it.watched.words(it.agent)
        assert words.index("The user's.") < words.index("The session's.")
        assert (await it.record(it.agent)).run == 2
        assert await told(it) == [(it.agent, "completed")] * 2


# ── the worker dies around a tool call, and around its end ───────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("point", "unknown"),
    [("draft.before", False), ("draft.after", True), ("tool_done.before", True), ("tool_done.after", False)],
)
async def test_a_command_runs_at_most_once_wherever_its_worker_dies(point: str, unknown: bool, tmp_path: Path) -> None:
    async with race(tmp_path, *working(SHORT), workers=2, allow=ALLOWED) as it:
        with it.hold(point, it.agent) as calling:
            await it.submit()
            it.system.kill(await calling.reached())
        await it.all_end()
        assert effect(it) == ([] if point == "draft.after" else ["start"])
        assert (EFFECT_UNKNOWN in await it.watched.words(it.agent)) is unknown
        assert await told(it) == [(it.agent, "completed")]


@pytest.mark.parametrize("point", ["claim.after", "append.before", "append.after", "finish.before", "finish.after"])
async def test_an_agent_ends_once_and_is_told_of_once_wherever_its_worker_dies(point: str, tmp_path: Path) -> None:
    """Appends: the one with the prompt."""
    async with race(tmp_path, *working(SHORT), workers=2, allow=ALLOWED) as it:
        with it.hold(point, it.agent) as held:
            await it.submit()
            it.system.kill(await held.reached())
        await it.all_end()
        agent = await it.record(it.agent)
        assert (agent.run, agent.fence) == (1, 1 if point == "finish.after" else 2)
        assert effect(it) == ["start"]
        assert await told(it) == [(it.agent, "completed")]
        assert (await it.watched.words(it.agent)).count("Begin.") == 1


async def test_a_worker_that_comes_too_late_to_its_claim_leaves_the_task_alone(tmp_path: Path) -> None:
    async with race(tmp_path, *working(SHORT), workers=2, allow=ALLOWED) as it:
        with it.hold("claim.before", it.agent) as claiming:
            await it.submit()
            await claiming.reached()
            await it.ends(it.agent)
            claiming.release()
        await it.all_end()
        assert ((await it.record(it.agent)).fence, effect(it)) == (1, ["start"])


# ── a session that asks its user ─────────────────────────────────────────────────────────────────────────────────

ASKING = (
    reply("s", 1, use("SyntheticOutput", result="Which one?", kind="question")),
    reply("s", 1, answer("That one."), expect=["The left one."]),
    reply("s", 2, answer("That one."), expect=["The left one."]),
)


@pytest.mark.parametrize("die", [False, True])
@pytest.mark.parametrize("point", ["append.before", "park.before", "park.after"])
async def test_a_reply_to_a_question_is_heard_before_and_after_the_park(point: str, die: bool, tmp_path: Path) -> None:
    """`append.before`: the append that asks."""
    async with race(tmp_path, *ASKING, coordinators=2 if die else 1) as it:
        with it.hold("append.after", it.session) as beginning:
            await it.submit()
            await beginning.reached()
            with it.hold(point, it.session) as asking:
                beginning.release()
                pid = await asking.reached()
                replied = await it.tell("The left one.")
                if die:
                    it.system.kill(pid)
                asking.release()
        assert (replied.status, replied.run) == (SendStatus.QUEUED, 1)
        await it.all_end("The left one.")
        session = await it.record(it.session)
        assert (session.state, session.run) == (State.COMPLETED, 1)
        assert (await outcome(it)).text == "That one."


# ── a process is told to end at a named point ────────────────────────────────────────────────────────────────────


async def gone(it: Race, pid: int) -> None:
    (member,) = [member for member in it.system.members.values() if member.pid == pid]
    await until(lambda: member.process.poll() is not None, what=f"the end of {member.name}")
    assert member.process.returncode == 0


@pytest.mark.parametrize("in_time", [True, False])
@pytest.mark.parametrize("point", ["create.before", "wake.before"])
async def test_a_coordinator_that_closes_while_it_dispatches_hands_over_one_task(
    point: str, in_time: bool, tmp_path: Path
) -> None:
    """Not in time: the call is cut, and the next owner makes it again."""
    async with race(tmp_path, *working(SHORT), coordinators=2, allow=ALLOWED) as it:
        with it.hold(point, it.agent) as dispatching, it.hold("finish.before", it.agent) as finishing:
            await it.submit()
            pid = await dispatching.reached()
            os.kill(pid, signal.SIGTERM)
            if in_time:
                dispatching.release()
            await gone(it, pid)
            await it.watched.says("Waiting.")
            finishing.release()
        world = await it.all_end()
        assert set(world.tasks) == {it.session, it.agent}
        session = await it.record(it.session)
        assert (session.fence, session.attempt, (await outcome(it)).text) == (2, 0, "Done.")
        assert effect(it) == ["start"]
        assert await told(it) == [(it.agent, "completed")]


@pytest.mark.parametrize("point", ["append.before", "draft.before", "draft.after", "tool_done.before", "finish.before"])
async def test_a_worker_that_closes_at_any_point_hands_over_and_nothing_is_done_twice(
    point: str, tmp_path: Path
) -> None:
    async with race(tmp_path, *working(SHORT), workers=2, allow=ALLOWED) as it:
        with it.hold(point, it.agent) as held:
            await it.submit()
            pid = await held.reached()
            os.kill(pid, signal.SIGTERM)
            held.release()
            await gone(it, pid)
        await it.all_end()
        agent = await it.record(it.agent)
        assert (agent.state, agent.run, agent.attempt) == (State.COMPLETED, 1, 0)
        assert len(effect(it)) == 1 or EFFECT_UNKNOWN in await it.watched.words(it.agent)
        assert len(effect(it)) <= 1
        assert await told(it) == [(it.agent, "completed")]


async def test_a_message_to_a_worker_that_is_just_handing_over_is_read_by_the_next(tmp_path: Path) -> None:
    lines = (
        *working(COMMAND)[:3],
        reply("s/1.0", 1, use("Bash", command=COMMAND)),
        reply("s/1.0", 2, say("Read."), expect=["Look sharp."], repeat=9),
    )
    async with race(tmp_path, *lines, workers=2, allow=ALLOWED) as it:
        await it.submit()
        await until(lambda: effect(it), seconds=40, what="the command's first line")
        lease = (await it.record(it.agent)).lease
        assert lease is not None
        with it.hold("park.before", it.agent) as parking:
            os.kill(it.system.members[lease.process.partition("@")[0]].pid, signal.SIGTERM)
            pid = await parking.reached()
            assert (await it.client.send(it.agent, "Look sharp.")).status is SendStatus.QUEUED
            parking.release()
            await gone(it, pid)
        await it.all_end("Look sharp.")
        agent = await it.record(it.agent)
        assert (agent.fence, agent.attempt) == (2, 0)
        assert (effect(it), await told(it)) == (["start"], [(it.agent, "completed")])


@pytest.mark.parametrize("point", ["park.before", "park.after"])
async def test_a_worker_that_is_killed_while_it_hands_over_has_lost_nothing(point: str, tmp_path: Path) -> None:
    async with race(tmp_path, *working(COMMAND), workers=2, allow=ALLOWED) as it:
        await it.submit()
        await until(lambda: effect(it), seconds=40, what="the command's first line")
        lease = (await it.record(it.agent)).lease
        assert lease is not None
        with it.hold(point, it.agent) as parking:
            os.kill(it.system.members[lease.process.partition("@")[0]].pid, signal.SIGTERM)
            it.system.kill(await parking.reached())
        await it.all_end()
        agent = await it.record(it.agent)
        assert (agent.state, agent.run, agent.fence) == (State.COMPLETED, 1, 2)
        assert (effect(it), await told(it)) == (["start"], [(it.agent, "completed")])
