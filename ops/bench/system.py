"""What the benchmarks run on: a real server, the stand-in, a real worker process, and a plain Celery worker beside it.

This process is the coordinator: it holds a session and dispatches as `coordinator.dispatch` does.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from celery import Celery
from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import AgentSpec, Limits, Mode, SessionSpec, ShellSpec, Workspace
from celeriac.common.queue.celery_app import make_app
from celeriac.common.queue.wakeups import WakeUps
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import NewTask
from celeriac.common.testing.cluster import READY_SECONDS, Cluster, Member, cluster
from celeriac.common.testing.waiting import until
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.ops.bench.baselines import plain_celery
from celeriac.ops.bench.model import NOTES, Model

LEASE_SECONDS = 15.0
"""The default of the product."""
PROCESS = "bench"
NOTES_LINES = 30
"""About 1.8 kB: with the rest of a turn the history grows by 2.2 kB, as in the measurements of MODEL_API."""
END_SECONDS = 120.0
"""No benchmark waits longer for its tasks."""
BASELINES = Path(__file__).parent / "baselines"


@dataclass(slots=True)
class System:
    """Everything that runs."""

    folder: Path
    processes: Cluster
    model: Model
    substrate: Substrate
    session: Lease
    dispatcher: Dispatcher
    plain: Celery
    redis: Redis
    worker: Member
    _numbers: "count[int]" = field(default_factory=count)

    def agent(self, path: str, *, turns: int | None = None) -> NewTask:
        """A new agent that is answered by this path of the script."""
        return self._task(
            Kind.AGENT, AgentSpec(prompt="Look into it, then say what you found."), path, Limits(turns=turns)
        )

    def shell(self, command: str) -> NewTask:
        """A new command."""
        return self._task(Kind.SHELL, ShellSpec(command=command), "s/9.0", Limits())

    def _task(self, kind: Kind, spec: AgentSpec | ShellSpec, path: str, limits: Limits) -> NewTask:
        return NewTask(
            task_id=ids.child(self.session.task_id, kind, f"toolu_{next(self._numbers)}"),
            kind=kind,
            parent=self.session.task_id,
            path=path,
            title="bench",
            spec=spec,
            mode=Mode.ACCEPT_EDITS,
            tools=("Bash(true)",),
            limits=limits,
            workspace=Workspace(root=str(self.folder), label="ws-00000000"),
        )

    async def dispatch(self, task: NewTask) -> TaskId:
        """As a coordinator does it."""
        await self.dispatcher.dispatch(task, parent_token=self.session.token)
        return task.task_id

    async def ended(self, number: int) -> None:
        """Wait until the session has been notified of so many ends, and consume them."""
        async with asyncio.timeout(END_SECONDS):
            while (await self.session.renew()).unread < number:
                await self.substrate.hints.wait(PROCESS, sessions=False, timeout_s=5)
        entries = await self.substrate.inboxes.unread(self.session.task_id)
        await self.session.append([], consume=[entry.id for entry in entries], progress=False)
        failed = [entry.text for entry in entries if "<status>completed</status>" not in entry.text]
        assert not failed, failed[0]

    async def plain_ended(self, number: int) -> list[str]:
        """Wait until so many plain tasks have said that they are done; what they said."""
        said = []
        for _ in range(number):
            found = await self.redis.blpop([plain_celery.DONE], timeout=END_SECONDS)
            assert found is not None, "a plain task did not end"
            said.append(str(found[1]))
        return said


@asynccontextmanager
async def system(folder: Path, start: Callable[[Cluster], Awaitable[Member]] = Cluster.worker) -> AsyncIterator[System]:
    """Start everything, the worker by `start`; it is gone afterwards."""
    async with AsyncExitStack() as stack:
        processes = await stack.enter_async_context(cluster(folder, lease_seconds=LEASE_SECONDS, scan_seconds=1.0))
        model = Model()
        await model.start()
        stack.push_async_callback(model.aclose)
        processes.environ |= model_environment(model.url)
        worker = await start(processes)
        await script(processes, "plain", BASELINES / "plain_celery.py", processes.url, model.url, ready="ready")
        wakeups = WakeUps(make_app(processes.url))
        stack.callback(wakeups.close)
        substrate = Substrate.connect(processes.url)
        stack.push_async_callback(substrate.aclose)
        redis = Redis.from_url(processes.url, socket_timeout=None, decode_responses=True)
        stack.push_async_callback(redis.aclose)
        session = await hold_session(substrate)
        beating = asyncio.create_task(session.heartbeat(), name="heartbeat")
        stack.callback(beating.cancel)
        plain = plain_celery.make_app(processes.url)
        (folder / NOTES).write_text("Some words that stand in the notes, one line after another.\n" * NOTES_LINES)
        yield System(folder, processes, model, substrate, session, Dispatcher(substrate, wakeups), plain, redis, worker)


def model_environment(url: str) -> dict[str, str]:
    """What tells a process where its model is."""
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key", "CELERIAC_STANDIN": "1"}


async def hold_session(substrate: Substrate) -> Lease:
    """A session of this process."""
    session = ids.new_session()
    spec = SessionSpec(prompt="bench")
    task = NewTask(
        task_id=session, kind=Kind.SESSION, parent=None, path="s", title="bench", spec=spec, mode=Mode.ACCEPT_EDITS
    )
    await substrate.records.create(task, parent_token=None)
    lease = await substrate.claim(session, None, process=PROCESS)
    assert isinstance(lease, Lease), lease
    return lease


async def script(processes: Cluster, name: str, file: Path, *arguments: str, ready: str) -> Member:
    """Start a Python file as a process of the cluster, and wait for its `ready` words."""
    log = processes.folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220 - starting is quick; waiting for it is what takes time
            [sys.executable, str(file), *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env=processes.environ, start_new_session=True,
        )  # fmt: skip
    processes.members[name] = member = Member(name, process, log)

    def is_ready() -> bool:
        assert process.poll() is None, f"{name} ended: {member.said()}"
        return ready in member.said()

    await until(is_ready, seconds=READY_SECONDS, what=f"{name} ready")
    return member
