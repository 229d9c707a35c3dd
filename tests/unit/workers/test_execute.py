"""From a wake-up to a run, on an in-memory server with real commands: refusals, shells, a closing worker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft
from celeriac.common.contract.task import Mode, Record, ShellSpec, State, Workspace
from celeriac.common.policy.decide import StandardPermissions
from celeriac.common.runtime.holdings import Holdings
from celeriac.common.runtime.resume import EFFECT_UNKNOWN
from celeriac.common.runtime.runner import Runner
from celeriac.common.runtime.turn import inbox_blocks
from celeriac.common.settings import Settings, WorkerSettings
from celeriac.common.substrate.leases import Lease
from celeriac.common.testing.points import hold
from celeriac.common.testing.servers import in_memory
from celeriac.common.testing.substrate_kit import Kit, line, new_task
from celeriac.common.testing.waiting import until
from celeriac.workers.execute import Worker, execute
from celeriac.workers.kinds.shell import CLOSED, MARK
from celeriac.workers.shell.commands import Commands

GRACE_SECONDS = 3.0


@dataclass
class Bench:
    """A worker, and the session that its tasks belong to."""

    kit: Kit
    worker: Worker
    lease: Lease
    folder: Path

    async def shell(self, command: str) -> TaskId:
        task_id = ids.child(self.lease.task_id, Kind.SHELL, command)
        task = new_task(task_id, self.lease.task_id, ShellSpec(command=command))
        changes = {"mode": Mode.BYPASS, "workspace": Workspace(root=str(self.folder), label="ws-00000000")}
        await self.kit.substrate.records.create(task.model_copy(update=changes), parent_token=self.lease.token)
        return task_id

    async def run(self, task_id: TaskId) -> str:
        async with asyncio.timeout(20):
            return (await execute(self.worker, Envelope(task_id=task_id, run=1))).text

    async def record(self, task_id: TaskId) -> Record:
        return await self.kit.substrate.records.get(task_id)

    @property
    def holdings(self) -> Holdings:
        return self.worker.runner.holdings


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    substrate = in_memory()
    kit = Kit(substrate, None, None)  # type: ignore[arg-type]  # nothing of it looks inside
    runner = Runner(
        substrate=substrate,
        models=None,  # type: ignore[arg-type]  # no model is asked
        permissions=StandardPermissions(),
        settings=Settings(home=tmp_path, worker=WorkerSettings(soft_shutdown_seconds=GRACE_SECONDS)),
        holdings=Holdings(),
        process="worker",
    )
    commands = Commands(max_silence_s=10)
    yield Bench(kit, Worker(runner, commands), await kit.owned_session(), tmp_path)
    await commands.close()
    await substrate.aclose()


async def test_a_command_ends_as_it_ends(bench: Bench) -> None:
    good, bad = await bench.shell("echo hello"), await bench.shell("echo oh; exit 3")
    assert "completed" in await bench.run(good) and "exit 3" in await bench.run(bad)
    record = await bench.record(good)
    assert record.outcome is not None and (record.outcome.text or "").strip() == "hello"
    record = await bench.record(bad)
    assert record.outcome is not None
    assert (record.state, record.outcome.reason, record.outcome.partial) == (State.FAILED, "exit 3", False)
    assert len(bench.holdings) == 0


async def test_a_message_for_nobody_is_dropped(bench: Bench) -> None:
    unknown = ids.child(bench.lease.task_id, Kind.AGENT, "toolu_9")
    assert await bench.run(unknown) == "NOREC"
    assert await bench.run(bench.lease.task_id) == "NOT SERVED"
    done = await bench.shell("true")
    await bench.run(done)
    assert await bench.run(done) == "DONE"


async def test_a_run_that_still_unwinds_here_keeps_the_next_away(bench: Bench) -> None:
    task_id = await bench.shell("echo hello")
    old = await bench.kit.claim(task_id)
    with bench.holdings.hold(old):
        assert await bench.run(task_id) == "BUSY"
    await old.release()
    assert "completed" in await bench.run(task_id)


async def test_a_closing_worker_starts_nothing_and_hands_over_what_has_not_started(bench: Bench) -> None:
    task_id = await bench.shell("echo hello")
    bench.holdings.shut_down()
    assert await bench.run(task_id) == "CLOSING"
    assert (await bench.record(task_id)).lease is None
    hints = bench.kit.substrate.hints
    told = [await hints.wait("nobody", sessions=True, timeout_s=1) for _ in range(2)]
    assert told == [bench.lease.task_id, task_id], "a coordinator sends the swallowed wake-up again at once"


async def test_a_command_may_end_in_the_grace_of_a_closing_worker(bench: Bench) -> None:
    task_id = await bench.shell("touch mark; read line; echo $line")
    running = asyncio.ensure_future(bench.run(task_id))
    await until((bench.folder / "mark").exists)
    bench.holdings.shut_down()
    sender = (bench.lease.task_id, bench.lease.token)
    await bench.kit.substrate.inboxes.send_message(task_id, "1", "heard", op="1", sender=sender)
    bench.holdings.poke(task_id)
    assert "completed" in await running
    record = await bench.record(task_id)
    assert record.outcome is not None and (record.outcome.text or "").split() == ["heard", "heard"]  # the echo first


async def test_a_command_whose_mark_was_written_has_the_grace_too(bench: Bench) -> None:
    task_id = await bench.shell("echo hello")
    with hold("draft.after", task_id) as marked:
        running = asyncio.ensure_future(bench.run(task_id))
        await marked.reached.wait()
        bench.holdings.shut_down()
        marked.release()
        await running
    record = await bench.record(task_id)
    assert record.outcome is not None and (record.outcome.text or "").strip() == "hello"


async def test_a_stop_does_not_wait_for_the_grace(bench: Bench) -> None:
    task_id = await bench.shell("touch mark; sleep 60")
    running = asyncio.ensure_future(bench.run(task_id))
    await until((bench.folder / "mark").exists)
    bench.holdings.shut_down()
    await bench.kit.substrate.records.request_stop(task_id, kind="user", reason="enough", op="1")
    bench.holdings.poke(task_id)
    async with asyncio.timeout(GRACE_SECONDS):
        await running
    assert (await bench.record(task_id)).state is State.STOPPED


async def test_a_worker_that_is_told_twice_to_close_gives_no_grace(bench: Bench) -> None:
    task_id = await bench.shell("touch mark; sleep 60")
    running = asyncio.ensure_future(bench.run(task_id))
    await until((bench.folder / "mark").exists)
    bench.holdings.shut_down()
    bench.holdings.shut_down()
    async with asyncio.timeout(GRACE_SECONDS):
        await running
    record = await bench.record(task_id)
    assert record.outcome is not None and record.outcome.reason == CLOSED


async def test_a_command_of_a_closing_worker_fails_with_its_reason(bench: Bench) -> None:
    task_id = await bench.shell("echo begun; touch mark; sleep 60")
    running = asyncio.ensure_future(bench.run(task_id))
    await until((bench.folder / "mark").exists)
    bench.holdings.shut_down()
    await running
    record = await bench.record(task_id)
    assert record.outcome is not None and (record.state, record.outcome.reason) == (State.FAILED, CLOSED)
    assert "begun" in (record.outcome.text or "") and record.outcome.partial


async def test_input_that_a_former_owner_consumed_is_typed_in_by_the_next(bench: Bench) -> None:
    task_id = await bench.shell("read a; read b; echo [$a-$b]")
    send, sender = bench.kit.substrate.inboxes.send_message, (bench.lease.task_id, bench.lease.token)
    former = await bench.kit.claim(task_id)
    for number, text in enumerate((" ", "two")):
        await send(task_id, str(number), text, op=str(number), sender=sender)
    entries = await bench.kit.substrate.inboxes.unread(task_id)
    first = line("read a; read b; echo [$a-$b]")
    first = first.model_copy(update={"content": (*first.content, *inbox_blocks(entries))})
    await former.append([first], consume=[entry.id for entry in entries])
    await former.release()
    assert "completed" in await bench.run(task_id)
    record = await bench.record(task_id)
    assert record.outcome is not None and "[-two]" in (record.outcome.text or "")


async def test_a_command_that_had_started_is_not_started_again(bench: Bench) -> None:
    task_id = await bench.shell("touch mark")
    former = await bench.kit.claim(task_id)
    await former.append([line("touch mark")])
    await former.draft(Draft(run=1, turn=0, blocks=()), [MARK])
    await former.release()
    assert EFFECT_UNKNOWN in await bench.run(task_id)
    assert (await bench.record(task_id)).state is State.FAILED and not (bench.folder / "mark").exists()


async def test_messages_are_typed_in_and_a_started_command_never_runs_twice(bench: Bench) -> None:
    task_id = await bench.shell("read a; read b; echo $a-$b")
    send = bench.kit.substrate.inboxes.send_message
    sender = (bench.lease.task_id, bench.lease.token)
    await send(task_id, "1", "one", op="1", sender=sender)
    running = asyncio.ensure_future(bench.run(task_id))
    await until(lambda: task_id in bench.holdings)
    await send(task_id, "2", "two", op="2", sender=sender)
    bench.holdings.poke(task_id)
    assert "completed" in await running
    record = await bench.record(task_id)
    assert record.outcome is not None and "one-two" in (record.outcome.text or "")
