"""Short words for tests of the substrate: tasks, lines, outcomes, and faults that only a test may cause."""

from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import NewLine, Origin, Role, text_block, tool_result_block
from celeriac.common.contract.task import (
    AgentSpec,
    Limits,
    Mode,
    Outcome,
    SessionSpec,
    ShellSpec,
    Spec,
    State,
    Subtype,
)
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import Created, NewTask

PROCESS = "coordinator-1"
DONE = Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text="done")
BROKEN = Outcome(state=State.FAILED, subtype=Subtype.EXECUTION, reason="model error", text="half", partial=True)


def line(text: str = "hello", *, role: Role = "user", run: int = 1, inbox_ids: Sequence[str] = ()) -> NewLine:
    """A line of one text block."""
    origin = Origin.MODEL if role == "assistant" else Origin.PROMPT
    return NewLine(run=run, turn=1, role=role, content=(text_block(text),), origin=origin, inbox_ids=tuple(inbox_ids))


def call(tool_use_id: str, *, run: int = 1, name: str = "Bash") -> NewLine:
    """An assistant line that asks for one tool."""
    block: JsonObject = {"type": "tool_use", "id": tool_use_id, "name": name, "input": {}}
    return NewLine(run=run, turn=1, role="assistant", content=(block,), origin=Origin.MODEL)


def result(tool_use_id: str, text: str = "ok", *, run: int = 1) -> NewLine:
    """The user line that answers it."""
    return NewLine(run=run, turn=1, role="user", content=(tool_result_block(tool_use_id, text),), origin=Origin.TOOLS)


def new_task(task_id: TaskId, parent: TaskId | None, spec: Spec, *, limits: Limits | None = None) -> NewTask:
    """A task with nothing special."""
    path = "s" if parent is None else "s/1.0"
    return NewTask(
        task_id=task_id,
        kind=spec.kind,
        parent=parent,
        path=path,
        title=f"title of {task_id}",
        spec=spec,
        mode=Mode.DEFAULT,
        limits=limits or Limits(),
    )


@dataclass(frozen=True, slots=True)
class Kit:
    """A substrate, and a raw client beside it for faults and for looking inside."""

    substrate: Substrate
    redis: Redis
    keys: Keys

    async def session(self, *, limits: Limits | None = None) -> TaskId:
        """A new session without owner."""
        task_id = ids.new_session()
        task = new_task(task_id, None, SessionSpec(prompt="do it"), limits=limits)
        assert await self.substrate.records.create(task, parent_token=None) is Created.CREATED
        return task_id

    async def owned_session(self) -> Lease:
        """A new session, claimed by PROCESS."""
        return await self.claim(await self.session())

    async def agent(self, parent: Lease, tool_use_id: str = "toolu_1", *, limits: Limits | None = None) -> TaskId:
        """A new agent below `parent`."""
        task_id = ids.child(parent.task_id, Kind.AGENT, tool_use_id)
        task = new_task(task_id, parent.task_id, AgentSpec(prompt="work"), limits=limits)
        assert await self.substrate.records.create(task, parent_token=parent.token) is Created.CREATED
        return task_id

    async def shell(self, parent: Lease, tool_use_id: str = "toolu_sh") -> TaskId:
        """A new shell below `parent`."""
        task_id = ids.child(parent.task_id, Kind.SHELL, tool_use_id)
        task = new_task(task_id, parent.task_id, ShellSpec(command="true"))
        assert await self.substrate.records.create(task, parent_token=parent.token) is Created.CREATED
        return task_id

    async def claim(self, task_id: TaskId, *, run: int | None = None, process: str = PROCESS) -> Lease:
        """A claim that must succeed."""
        lease = await self.substrate.claim(task_id, run, process=process)
        assert isinstance(lease, Lease), lease
        return lease

    async def expire(self, task_id: TaskId) -> None:
        """End the lease of this task as if its owner had been silent."""
        await self.field(task_id, "lease_until", "1")

    async def field(self, task_id: TaskId, name: str, value: str) -> None:
        """Overwrite one field of a record."""
        await self.redis.hset(self.keys.task(task_id, "t"), name, value)

    async def raw(self, task_id: TaskId) -> dict[str, str]:
        """The whole record as it is stored."""
        found = await self.redis.hgetall(self.keys.task(task_id, "t"))
        return {_text(name): _text(value) for name, value in found.items()}

    async def state(self, task_id: TaskId) -> State:
        """Where the task stands."""
        return (await self.substrate.records.get(task_id)).state

    async def inbox(self, task_id: TaskId) -> tuple[str, ...]:
        """Ids of everything in the inbox."""
        return tuple(entry.id for entry in await self.substrate.inboxes.unread(task_id))

    async def later(self) -> int:
        """A deadline that no test lives to see."""
        return await self.substrate.records.server_time_ms() + 60_000

    async def question(self, task_id: TaskId, qid: str, **times: int) -> None:
        """Overwrite `deadline` or `asked_at` of a stored question."""
        key = self.keys.session(task_id, "ask")
        task, run, deadline, asked_at, body = _text(await self.redis.hget(key, qid) or "").split(" ", 4)
        deadline, asked_at = str(times.get("deadline", deadline)), str(times.get("asked_at", asked_at))
        await self.redis.hset(key, qid, f"{task} {run} {deadline} {asked_at} {body}")

    async def deadline_passes(self, task_id: TaskId, qid: str) -> None:
        """Have the time for an answer be over long ago."""
        await self.question(task_id, qid, deadline=1)

    async def wake_long_ago(self, task_id: TaskId) -> None:
        """Make the last wake-up of this task older than any back-off."""
        await self.field(task_id, "wake_at", "1")


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
