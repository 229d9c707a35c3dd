"""C01: a task that runs longer than whatever the queue or a lease allows for one silence is started once and ends once,
however often its message is delivered again."""

import asyncio
from pathlib import Path

import pytest

from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.queue.celery_app import RUN_TASK, make_app
from celeriac.common.testing.cluster import cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

SHORT_LEASE_SECONDS = 1.0
LONG_COMMAND = "echo start >> {name}; sleep 9; echo end >> {name}"
"""Nine leases long."""
NAMES = ("agent.txt", "shell.txt")
AGENT, SHELL = (LONG_COMMAND.format(name=name) for name in NAMES)
SCRIPT = script(
    reply("s", 1, dispatch("a", prompt="Run it."), dispatch("sh", command=SHELL)),
    *(reply("s", turn, say("Waiting.")) for turn in (2, 3, 4)),
    reply("s/1.0", 1, use("Bash", command=AGENT)),
    reply("s/1.0", 2, say("It was run.")),
)


def test_the_queue_never_delivers_again_what_it_has_delivered() -> None:
    """Acknowledged before it runs, a message is not the broker's any more: no visibility timeout can bring it back."""
    for ours in (False, True):
        conf = make_app("redis://127.0.0.1:1/0", ours=ours).conf
        assert conf.task_acks_late is False
        assert conf.task_reject_on_worker_lost in {None, False}
        assert (conf.worker_prefetch_multiplier, conf.worker_disable_prefetch) == (1, True)


@pytest.mark.cluster
@pytest.mark.parametrize("again", ["at once", "all the time"])
async def test_a_long_task_is_started_once_and_told_once(tmp_path: Path, again: str) -> None:
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    async with cluster(tmp_path, lease_seconds=SHORT_LEASE_SECONDS) as system:
        await asyncio.gather(system.coordinator(), system.worker("worker1"), system.worker("worker2"))
        system.refuse_shams()
        async with Client.connect(system.url) as client:
            rules = (f"Bash({AGENT})", f"Bash({SHELL})")
            options = JobOptions(cwd=workspace, allowed_tools=rules, replay=SCRIPT)
            watched = Watched(client, await client.submit("Go.", options))
            tasks = [await watched.task(kind) for kind in (Kind.AGENT, Kind.SHELL)]
            app = make_app(system.url)

            def redeliver() -> None:
                for task in tasks:
                    message = Envelope(task_id=task.task_id, run=1).model_dump(mode="json")
                    app.send_task(RUN_TASK, args=[message], task_id=task.task_id, queue=task.kind.value)

            async def begun() -> bool:
                return all((workspace / name).exists() for name in NAMES)

            async def ended_while_delivered_again() -> bool:
                redeliver()
                return (await client.get(watched.job.id)).state.terminal

            redeliver()
            await until(begun, what="both commands' start")
            if again == "all the time":
                await until(ended_while_delivered_again, seconds=40, what="the job's end")
            assert (await watched.end()).state is State.COMPLETED
            told = await watched.notified()
            assert sorted(one.task_id for one in told) == sorted(task.task_id for task in tasks)
            assert [one.status for one in told] == ["completed", "completed"]
            for task in tasks:
                record = await client.get(task.task_id)
                assert (record.fence, record.run, record.attempt) == (1, 1, 0)
    for name in NAMES:
        assert (workspace / name).read_text().split() == ["start", "end"]
