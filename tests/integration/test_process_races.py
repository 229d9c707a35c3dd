"""The four messages that race, between whole processes: each order is forced at a named point of the process that is
held there, and once more with that process killed at this very point (PROTOCOL 8)."""

import asyncio
from pathlib import Path

import orjson
import pytest

from celeriac.common.contract.errors import Refused
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.substrate.types import SendStatus
from celeriac.common.testing.replies import answer, dispatch, reply, say, use
from celeriac.common.testing.waiting import until
from celeriac.ops.chaos.race import Race, race

pytestmark = pytest.mark.cluster

MORE = "And one thing more."


# ── SendMessage while the agent is finishing ─────────────────────────────────────────────────────────────────────

SENDING = (
    reply("s", 1, dispatch("a", prompt="Begin.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, use("SendMessage", to="{{task:s/1.0}}", message=MORE), expect=["Tell it."]),
    reply("s", 4, say("Waiting again.")),
    reply("s", 5, answer("Done.")),
    reply("s/1.0", 1, say("First report.")),
    reply("s/1.0", 1, say("Second report."), expect=[MORE]),
    reply("s/1.0", 2, say("Second report."), expect=[MORE]),
    reply("s/1.0", 1, say("Second report."), run=2, expect=[MORE]),
)


async def sent(it: Race) -> JsonObject:
    """What the session's SendMessage has answered."""

    async def answered() -> bool:
        return len(await it.watched.results()) > 1

    await until(answered, what="the result of SendMessage")
    found: JsonObject = orjson.loads((await it.watched.results())[1].text)
    return found


async def message_before_finish(it: Race) -> None:
    with it.hold("finish.before", it.agent) as finishing:
        await it.submit()
        await finishing.reached()
        await it.watched.says("Waiting.")
        await it.tell("Tell it.")
        assert await sent(it) == {"task_id": it.agent, "state": "delivered", "run": 1}
        finishing.release()
    await it.all_end(MORE, "Tell it.")
    assert ((await it.record(it.agent)).run, (await it.record(it.session)).run) == (1, 1)
    assert await it.notified() == [(it.agent, "completed", "Second report.")]
    words = await it.watched.words(it.agent)
    assert words.index("First report.") < words.index(MORE) < words.index("Second report.")


async def test_a_message_before_the_finish_is_read_in_the_same_run(tmp_path: Path) -> None:
    async with race(tmp_path, *SENDING) as it:
        await message_before_finish(it)


async def test_a_message_before_the_finish_survives_the_worker_that_was_finishing(tmp_path: Path) -> None:
    async with race(tmp_path, *SENDING, workers=2) as it:
        with it.hold("finish.before", it.agent) as finishing:
            await it.submit()
            pid = await finishing.reached()
            await it.watched.says("Waiting.")
            await it.tell("Tell it.")
            assert (await sent(it))["run"] == 1
            it.system.kill(pid)
        await it.all_end(MORE, "Tell it.")
        agent = await it.record(it.agent)
        assert (agent.run, agent.fence) == (1, 2)
        assert await it.notified() == [(it.agent, "completed", "Second report.")]


async def test_a_message_that_was_delivered_is_not_sent_again_by_the_next_coordinator(tmp_path: Path) -> None:
    async with race(tmp_path, *SENDING, coordinators=2) as it:
        with it.hold("finish.before", it.agent) as finishing, it.hold("send_message.after", it.agent) as sending:
            await it.submit()
            await finishing.reached()
            await it.watched.says("Waiting.")
            await it.tell("Tell it.")
            it.system.kill(await sending.reached())
            assert (await sent(it))["run"] == 1
            finishing.release()
        await it.all_end(MORE, "Tell it.")
        assert ((await it.record(it.agent)).run, (await it.record(it.session)).fence) == (1, 2)
        assert await it.notified() == [(it.agent, "completed", "Second report.")]


async def test_a_message_after_the_finish_opens_a_run_that_knows_the_first(tmp_path: Path) -> None:
    async with race(tmp_path, *SENDING) as it:
        with it.hold("finish.before", it.agent) as finishing, it.hold("send_message.before", it.agent) as sending:
            await it.submit()
            await finishing.reached()
            await it.watched.says("Waiting.")
            await it.tell("Tell it.")
            await sending.reached()
            finishing.release()
            assert (await it.ends(it.agent)).state is State.COMPLETED
            with it.gate("claim.before", it.agent) as again:  # so that the first notification comes alone
                sending.release()
                await it.watched.says("Waiting again.")
                again.release()
        assert await sent(it) == {"task_id": it.agent, "state": "reopened", "run": 2}
        await check_second_run(it)


@pytest.mark.parametrize("point", ["send_message.before", "send_message.after", "wake.before"])
async def test_a_message_after_the_finish_opens_one_run_whoever_dies_sending_it(point: str, tmp_path: Path) -> None:
    async with race(tmp_path, *SENDING, coordinators=2) as it:
        with it.hold("finish.before", it.agent) as finishing, it.hold("send_message.before", it.agent) as sending:
            await it.submit()
            await finishing.reached()
            await it.watched.says("Waiting.")
            await it.tell("Tell it.")
            pid = await sending.reached()
            finishing.release()
            assert (await it.ends(it.agent)).state is State.COMPLETED
            with it.gate("claim.before", it.agent) as again:
                if point != "send_message.before":
                    with it.hold(point, it.agent) as later:
                        sending.release()
                        assert await later.reached() == pid
                it.system.kill(pid)
                await it.watched.says("Waiting again.")
                again.release()
        await check_second_run(it)
        assert (await it.record(it.session)).fence == 2


async def check_second_run(it: Race) -> None:
    """The agent's second run goes on where the first ended."""
    await it.all_end(MORE, "Tell it.")
    assert ((await it.record(it.agent)).run, (await it.record(it.session)).run) == (2, 1)
    assert await it.notified() == [
        (it.agent, "completed", "First report."),
        (it.agent, "completed", "Second report."),
    ]
    history = await it.watched.words(it.agent)
    places = [history.find(each) for each in ("Begin.", "First report.", MORE, "Second report.")]
    assert -1 not in places
    assert places == sorted(places)


# ── a stop while the coordinator dispatches ──────────────────────────────────────────────────────────────────────

DISPATCHING = (
    reply("s", 1, dispatch("a", prompt="Begin.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, answer("Done.")),
    reply("s", 1, answer("Continued."), run=2, expect=["Go on."]),
    reply("s/1.0", 1, say("The report.")),
)
BETWEEN = ["create.before", "create.after", "wake.before", "wake.after"]
"""From the stored assistant message to the wake-up that has been sent."""


async def accepted(it: Race) -> None:
    """Wait until the session's stop is accepted and what was created is ended by it."""

    async def stopped() -> bool:
        session, *below = await it.client.tree(it.session)
        return session.stop is not None and all(record.state is State.STOPPED for record in below)

    await until(stopped, what="the stop accepted")


async def check_stopped(it: Race, *, created: bool) -> None:
    """Nothing was started; then the job is continued, and the next run hears once of what never ran."""
    world = await it.all_end()
    assert (await it.record(it.session)).state is State.STOPPED
    assert set(world.tasks) == ({it.session, it.agent} if created else {it.session})
    assert world.tasks[it.session].record.inbox == ((f"n:{it.agent}:1",) if created else ())
    assert (await it.tell("Go on.")).status is SendStatus.REOPENED
    await it.all_end("Go on.")
    session = await it.record(it.session)
    assert (session.run, session.state) == (2, State.COMPLETED)
    assert [note[:2] for note in await it.notified()] == ([(it.agent, "killed")] if created else [])
    assert await it.asked("s/1.0") == 0
    if created:
        assert (await it.record(it.agent)).fence == 0


async def stop_while_dispatching(it: Race, point: str) -> None:
    with it.hold(point, it.agent) as dispatching, it.gate("claim.before", it.agent) as late:
        await it.submit()
        await dispatching.reached()
        stopping = asyncio.create_task(it.client.stop(it.session, "enough"))
        await accepted(it)
        dispatching.release()
        assert {line.verdict for line in await stopping} == {"stopped"}
        late.release()
    await check_stopped(it, created=point != "create.before")


@pytest.mark.parametrize("point", BETWEEN)
async def test_a_stop_while_a_task_is_dispatched_comes_before_its_start(point: str, tmp_path: Path) -> None:
    async with race(tmp_path, *DISPATCHING) as it:
        await stop_while_dispatching(it, point)


@pytest.mark.parametrize("point", BETWEEN)
async def test_a_stop_while_a_task_is_dispatched_holds_though_the_coordinator_dies(point: str, tmp_path: Path) -> None:
    async with race(tmp_path, *DISPATCHING, coordinators=2) as it:
        with it.hold(point, it.agent) as dispatching, it.gate("claim.before", it.agent) as late:
            await it.submit()
            pid = await dispatching.reached()
            stopping = asyncio.create_task(it.client.stop(it.session, "enough"))
            await accepted(it)
            it.system.kill(pid)
            late.release()
            await stopping
        await check_stopped(it, created=point != "create.before")


STOPPING = (
    reply("s", 1, dispatch("a", prompt="Begin."), use("TaskStop", task_id="{{task:s/1.0}}", reason="not needed")),
    reply("s", 2, answer("Done.")),
    reply("s", 3, answer("Done.")),
    reply("s/1.0", 1, say("The report.")),
)


async def check_task_stopped(it: Race, *, said: str, fence: int) -> None:
    await it.all_end()
    agent = await it.record(it.agent)
    assert (agent.state, agent.run, agent.fence) == (State.STOPPED, 1, fence)
    assert (await it.record(it.session)).state is State.COMPLETED
    assert [note[:2] for note in await it.notified()] == [(it.agent, "killed")]
    assert (await it.watched.results())[1].text.startswith(f"{it.agent}: {said}")
    assert await it.asked("s/1.0") == 0


async def test_a_task_stop_before_the_claim_leaves_nothing_to_claim(tmp_path: Path) -> None:
    async with race(tmp_path, *STOPPING) as it:
        with it.hold("request_stop.before", it.agent) as stopping, it.gate("claim.before", it.agent) as claiming:
            await it.submit()
            await stopping.reached()
            await claiming.reached()
            stopping.release()
            await it.ends(it.agent)
            claiming.release()
        await check_task_stopped(it, said="stopped", fence=0)


async def test_a_task_stop_after_the_claim_comes_before_the_first_model_call(tmp_path: Path) -> None:
    async with race(tmp_path, *STOPPING) as it:
        with it.hold("request_stop.before", it.agent) as stopping, it.hold("append.before", it.agent) as beginning:
            await it.submit()
            await stopping.reached()
            await beginning.reached()
            stopping.release()
            await until(lambda: stop_of_agent(it), what="the stop accepted")
            beginning.release()
        await check_task_stopped(it, said="stopped", fence=1)


@pytest.mark.parametrize("point", ["claim.before", "append.before"])
async def test_a_task_stop_is_settled_though_the_worker_dies_at_its_claim(point: str, tmp_path: Path) -> None:
    async with race(tmp_path, *STOPPING, workers=2) as it:
        with it.hold("request_stop.before", it.agent) as stopping, it.gate(point, it.agent) as claiming:
            await it.submit()
            await stopping.reached()
            pid = await claiming.reached()
            stopping.release()
            await until(lambda: stop_of_agent(it), what="the stop accepted")
            it.system.kill(pid)
        claimed = point != "claim.before"
        await check_task_stopped(it, said="not confirmed" if claimed else "stopped", fence=int(claimed))


async def stop_of_agent(it: Race) -> bool:
    return (await it.record(it.agent)).stop is not None


# ── the user's follow-up while the session ends ──────────────────────────────────────────────────────────────────

ENDINGS = {"text": say("First."), "tool": answer("First.")}


def following(ending: str) -> tuple[JsonObject, ...]:
    """The session ends with its first answer, and with its second when it has read the follow-up, in whichever run."""
    return (
        reply("s", 1, ENDINGS[ending]),
        reply("s", 1, answer("Second."), expect=[MORE]),
        reply("s", 2, answer("Second."), expect=[MORE]),
        reply("s", 1, answer("Second."), run=2, expect=[MORE]),
    )


async def check_followed(it: Race, *, run: int, fence: int) -> None:
    await it.all_end(MORE)
    session = await it.record(it.session)
    assert session.outcome is not None
    assert (session.run, session.fence, session.outcome.text) == (run, fence, "Second.")
    earlier = await it.outcome(it.session, 1)
    assert earlier.text == ("First." if run == 2 else "Second.")
    assert (await it.watched.words()).count(MORE) == 1


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_follow_up_before_the_end_is_answered_in_the_same_run(ending: str, tmp_path: Path) -> None:
    async with race(tmp_path, *following(ending)) as it:
        with it.hold("finish.before", it.session) as finishing:
            await it.submit()
            await finishing.reached()
            sent_ = await it.tell(MORE)
            assert (sent_.status, sent_.run) == (SendStatus.QUEUED, 1)
            finishing.release()
        await check_followed(it, run=1, fence=1)
        assert (await it.asked("s"), await it.asked("s", run=2)) == (2, 0)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("point", ["finish.before", "append.before", "append.after"])
async def test_a_follow_up_before_the_end_outlives_the_coordinator(point: str, ending: str, tmp_path: Path) -> None:
    async with race(tmp_path, *following(ending), coordinators=2) as it:
        with it.hold("finish.before", it.session) as finishing:
            await it.submit()
            pid = await finishing.reached()
            assert (await it.tell(MORE)).status is SendStatus.QUEUED
            if point != "finish.before":  # at the append that reads the follow-up
                with it.hold(point, it.session) as reading:
                    finishing.release()
                    assert await reading.reached() == pid
            it.system.kill(pid)
        await check_followed(it, run=1, fence=2)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_follow_up_after_the_end_opens_a_run_though_the_first_still_unwinds(
    ending: str, tmp_path: Path
) -> None:
    async with race(tmp_path, *following(ending)) as it:
        with it.hold("finish.after", it.session) as finishing:
            await it.submit()
            await finishing.reached()
            sent_ = await it.tell(MORE)
            assert (sent_.status, sent_.run) == (SendStatus.REOPENED, 2)
            finishing.release()
        await check_followed(it, run=2, fence=2)


@pytest.mark.parametrize("die", [False, True])
async def test_a_follow_up_after_the_end_is_another_coordinators(die: bool, tmp_path: Path) -> None:
    """The one that has ended the first run does not even know it yet, or never will."""
    async with race(tmp_path, *following("tool"), coordinators=2) as it:
        with it.hold("finish.after", it.session) as finishing:
            await it.submit()
            pid = await finishing.reached()
            assert (await it.tell(MORE)).status is SendStatus.REOPENED
            if die:
                it.system.kill(pid)
            assert (await it.ends(it.session, run=2)).state is State.COMPLETED
            finishing.release()
        await check_followed(it, run=2, fence=2)


async def test_a_follow_up_while_the_session_is_being_stopped_is_refused_and_taken_afterwards(tmp_path: Path) -> None:
    lines = (reply("s", 1, answer("First.")), reply("s", 1, answer("Second."), run=2, expect=[MORE]))
    async with race(tmp_path, *lines) as it:
        with it.hold("finish.before", it.session) as finishing:
            await it.submit()
            await finishing.reached()
            stopping = asyncio.create_task(it.client.stop(it.session, "enough"))
            await accepted(it)
            with pytest.raises(Refused, match="stopping"):
                await it.tell(MORE)
            finishing.release()
            await stopping
        assert (await it.record(it.session)).state is State.STOPPED
        assert (await it.tell(MORE)).status is SendStatus.REOPENED
        world = await it.all_end(MORE)
        assert world.tasks[it.session].outcomes[1].text == "First."
        assert world.tasks[it.session].outcomes[2].text == "Second."


# ── a message to a task that is queued again after its worker died ───────────────────────────────────────────────

COMMAND = "echo start >> effect.txt; sleep 300"
WORKING = (
    reply("s", 1, dispatch("a", prompt="Begin.")),
    reply("s", 2, say("Waiting.")),
    reply("s", 3, use("SendMessage", to="{{task:s/1.0}}", message=MORE), expect=["Tell it."]),
    reply("s", 4, say("Waiting again.")),
    reply("s", 5, answer("Done.")),
    reply("s/1.0", 1, use("Bash", command=COMMAND)),
    reply("s/1.0", 2, say("Seen once."), repeat=9),
    reply("s/1.0", 3, say("Seen."), repeat=9),
)


async def at_work(it: Race) -> None:
    """The command runs, and the session waits."""
    await it.submit()
    await until((it.workspace / "effect.txt").exists, seconds=40, what="the command's first line")
    await it.watched.says("Waiting.")


async def check_read_once(it: Race, *, fence: int) -> None:
    await it.all_end(MORE, "Tell it.")
    agent = await it.record(it.agent)
    assert (agent.state, agent.run, agent.fence) == (State.COMPLETED, 1, fence)
    assert [note[:2] for note in await it.notified()] == [(it.agent, "completed")]
    assert (it.workspace / "effect.txt").read_text().split() == ["start"]
    assert MORE in await it.watched.words(it.agent)


async def worker_of(it: Race) -> int:
    lease = (await it.record(it.agent)).lease
    assert lease is not None
    return it.system.members[lease.process.partition("@")[0]].pid


async def test_a_message_to_a_task_whose_worker_is_dead_waits_for_the_next(tmp_path: Path) -> None:
    async with race(tmp_path, *WORKING, workers=2, allow=(f"Bash({COMMAND})",)) as it:
        await at_work(it)
        with it.gate("claim.before", it.agent) as claiming:
            it.system.kill(await worker_of(it))
            await claiming.reached()
            await it.tell("Tell it.")
            assert await sent(it) == {"task_id": it.agent, "state": "delivered", "run": 1}
            claiming.release()
        await check_read_once(it, fence=2)


async def test_a_message_between_the_claim_and_the_first_append_is_read_by_that_owner(tmp_path: Path) -> None:
    async with race(tmp_path, *WORKING, workers=2, allow=(f"Bash({COMMAND})",)) as it:
        await at_work(it)
        with it.hold("append.before", it.agent) as beginning:
            it.system.kill(await worker_of(it))
            await beginning.reached()
            await it.tell("Tell it.")
            assert (await sent(it))["state"] == "delivered"
            beginning.release()
        await check_read_once(it, fence=2)


@pytest.mark.parametrize("point", ["append.before", "append.after"])
async def test_a_message_outlives_the_second_worker_too(point: str, tmp_path: Path) -> None:
    """Killed between its claim and its first append, or right after the append that has read the message."""
    async with race(tmp_path, *WORKING, workers=3, allow=(f"Bash({COMMAND})",)) as it:
        await at_work(it)
        with it.gate("claim.before", it.agent) as claiming, it.hold(point, it.agent) as beginning:
            it.system.kill(await worker_of(it))
            await claiming.reached()
            if point == "append.after":
                await it.tell("Tell it.")
                await sent(it)
            claiming.release()
            pid = await beginning.reached()
            if point == "append.before":
                await it.tell("Tell it.")
                await sent(it)
            else:
                assert MORE in await it.watched.words(it.agent)
            it.system.kill(pid)
        await check_read_once(it, fence=3)


async def test_a_message_to_a_task_that_never_began_stands_beside_its_prompt(tmp_path: Path) -> None:
    """The first worker died between its claim and the line with the prompt."""
    async with race(tmp_path, *SENDING, workers=2) as it:
        with it.hold("append.before", it.agent) as beginning, it.hold("finish.before", it.agent) as finishing:
            await it.submit()
            pid = await beginning.reached()
            await it.watched.says("Waiting.")
            with it.gate("claim.before", it.agent) as claiming:
                it.system.kill(pid)
                await claiming.reached()
                await it.tell("Tell it.")
                assert (await sent(it))["state"] == "delivered"
                claiming.release()
            await finishing.reached()
            first, *_ = await it.client.transcript(it.agent)
            assert [MORE in str(block["text"]) for block in first.content] == [False, True]
            finishing.release()
        await it.all_end(MORE, "Tell it.")
        agent = await it.record(it.agent)
        assert (agent.run, agent.fence, agent.kind) == (1, 2, Kind.AGENT)
        assert [note[:2] for note in await it.notified()] == [(it.agent, "completed")]


# ── without its rule each race is lost ───────────────────────────────────────────────────────────────────────────


async def test_a_finish_that_reads_no_inbox_loses_the_message(tmp_path: Path) -> None:
    async with race(tmp_path, *SENDING, mutation="finish reads no inbox") as it:
        with pytest.raises(AssertionError):
            await message_before_finish(it)


async def test_a_dispatch_that_heeds_no_stop_creates_the_task(tmp_path: Path) -> None:
    async with race(tmp_path, *DISPATCHING, mutation="create heeds no stop") as it:
        with pytest.raises(AssertionError):
            await stop_while_dispatching(it, "create.before")
