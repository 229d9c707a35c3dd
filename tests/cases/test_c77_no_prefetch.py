"""C77: nothing sits reserved behind a long task while another worker has room."""

import asyncio
from pathlib import Path

import pytest

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.watched import Watched

LONG = "echo begun >> long.txt; until [ -e go ]; do sleep 0.1; done"
SHORT = "echo done >> short.txt"
ORDERS = {"first": 0, "in the middle": 2, "last": 3}


def job_with(kind: str, long_at: int) -> str:
    """Four tasks, one of which is long, and one line for each notification and one for the first wait."""
    commands = [LONG if n == long_at else SHORT for n in range(4)]
    blocks = [
        dispatch("sh", command=command) if kind == "sh" else dispatch("a", prompt="Run it.") for command in commands
    ]
    agents = [] if kind == "sh" else commands
    return script(
        reply("s", 1, *blocks),
        *(reply("s", turn, say("Waiting.")) for turn in range(2, 8)),
        *(reply(f"s/1.{n}", 1, use("Bash", command=command)) for n, command in enumerate(agents)),
        *(reply(f"s/1.{n}", 2, say("It was run.")) for n, _ in enumerate(agents)),
    )


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["a", "sh"])
async def test_short_tasks_end_while_a_long_one_holds_a_worker(system: Cluster, tmp_path: Path, kind: str) -> None:
    system.environ["CELERIAC_WORKER_CONCURRENCY"] = "1"
    await asyncio.gather(system.coordinator(), system.worker("worker1"), system.worker("worker2"))
    async with Client.connect(system.url) as client:
        for name, long_at in ORDERS.items():
            workspace = tmp_path / name.replace(" ", "-")
            await asyncio.to_thread(workspace.mkdir)
            options = JobOptions(
                cwd=workspace, allowed_tools=(f"Bash({LONG})", f"Bash({SHORT})"), replay=job_with(kind, long_at)
            )
            watched = Watched(client, await client.submit("Go.", options))

            async def short_ones_have_ended(watched: Watched = watched) -> bool:
                tasks = [one for one in await client.tree(watched.job.id) if one.kind is Kind(kind)]
                return [one.state for one in tasks].count(State.COMPLETED) == 3

            await until(short_ones_have_ended, seconds=30, what=f"the short tasks' end, the long one being {name}")
            assert (workspace / "short.txt").read_text().split() == ["done"] * 3
            assert not (await client.get(watched.job.id)).state.terminal, "the long one has not ended"
            (workspace / "go").touch()
            assert (await watched.end()).state is State.COMPLETED
            assert (workspace / "long.txt").read_text().split() == ["begun"]
