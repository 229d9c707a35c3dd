"""The coordinator's four tools on an in-memory server: what they create, refuse and repeat."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Mode, State
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.lifetime.cleanup import CleanupRegistry
from celeriac.common.policy.decide import Policy, StandardPermissions
from celeriac.common.queue.wakeups import Wakeable, WakeUps
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.servers import in_memory
from celeriac.common.testing.substrate_kit import DONE, Kit
from celeriac.common.tools.base import ToolContext, ToolResult
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.tools import LATER, AgentToolInput, Session, session_toolbox


class Sent(WakeUps):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[TaskId, int, int]] = []

    async def send(self, task: Wakeable, *, run: int, attempt: int = 0) -> None:
        self.sent.append((task.task_id, run, attempt))


@dataclass
class Desk:
    """One owned session and its tools."""

    kit: Kit
    lease: Lease
    session: Session
    wakeups: Sent

    async def call(self, name: str, raw: JsonObject, call_id: str = "toolu_1", *, turn: int = 1) -> ToolResult:
        tool = session_toolbox(self.session).find(name)
        assert tool is not None
        ctx = ToolContext(
            task_id=self.lease.task_id,
            run=1,
            turn=turn,
            call_id=call_id,
            cancel=AbortNode(),
            emit=self._emit,
            cleanup=CleanupRegistry(),
            mode=Mode.DEFAULT,
        )
        return await tool.run(tool.input.model_validate(raw), ctx)

    async def _emit(self, text: str) -> None:
        raise AssertionError(text)

    async def agent(self, call_id: str = "toolu_1") -> TaskId:
        result = await self.call("AgentTool", {"description": "work", "prompt": "do it"}, call_id)
        return TaskId(json.loads(result.text)["task_id"])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    substrate: Substrate = in_memory()
    kit = Kit(substrate, None, None)  # type: ignore[arg-type]  # nothing of it looks inside
    lease = await kit.owned_session()
    record = await substrate.records.get(lease.task_id)
    wakeups = Sent()
    dispatcher = Dispatcher(substrate, wakeups)
    yield Desk(kit, lease, Session(record, lease, Policy(mode=record.mode), StandardPermissions(), dispatcher), wakeups)
    await substrate.aclose()


def test_there_are_exactly_four() -> None:
    names = session_toolbox(Session(None, None, None, None, None)).names  # type: ignore[arg-type]  # none is called
    assert names == ("AgentTool", "SendMessage", "TaskStop", "SyntheticOutput")


async def test_a_dispatch_again_makes_nothing_new(desk: Desk) -> None:
    first = await desk.call("AgentTool", {"description": "work", "prompt": "do it"})
    again = await desk.call("AgentTool", {"description": "work", "prompt": "do it"})
    assert first == again and json.loads(first.text)["state"] == "queued"
    task = ids.child(desk.lease.task_id, Kind.AGENT, "toolu_1")
    record = await desk.kit.substrate.records.get(task)
    assert (record.path, record.title, record.mode) == ("s/1.0", "work", Mode.DEFAULT)
    assert desk.wakeups.sent == [(task, 1, 0), (task, 1, 0)]  # doubled wake-ups are harmless


async def test_another_task_under_the_same_call_is_refused(desk: Desk) -> None:
    await desk.agent()
    other = await desk.call("AgentTool", {"description": "work", "prompt": "something else"})
    assert other.is_error and "different task" in other.text


@pytest.mark.parametrize("kind", ["r", "t", "d"])
async def test_a_kind_without_a_worker_is_answered_at_once(desk: Desk, kind: str) -> None:
    result = await desk.call("AgentTool", {"description": "x", "prompt": "x", "kind": kind})
    assert result.is_error and result.text.startswith(f"no worker serves this kind: {kind}")
    assert desk.wakeups.sent == []


async def test_what_cannot_be_honoured_is_refused_by_name(desk: Desk) -> None:
    assert set(AgentToolInput.model_fields) >= LATER
    result = await desk.call("AgentTool", {"description": "x", "prompt": "x", "team": "red", "effort": "low"})
    assert result.is_error and "effort, team" in result.text


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"description": "x", "prompt": " "}, "prompt"),
        ({"description": "x", "kind": "sh"}, "command: a shell task needs one"),
        ({"description": "x", "kind": "sh", "command": "sudo reboot"}, "command denied"),
    ],
)
async def test_nothing_is_started_for_a_wrong_call(desk: Desk, raw: JsonObject, words: str) -> None:
    result = await desk.call("AgentTool", raw)
    assert result.is_error and words in result.text
    assert (await desk.kit.substrate.records.get(desk.lease.task_id)).open_children == 0


async def test_a_message_is_delivered_once_and_reopens_an_ended_task(desk: Desk) -> None:
    task = await desk.agent()
    for _ in range(2):
        result = await desk.call("SendMessage", {"to": task, "message": "more"}, "toolu_2")
        assert json.loads(result.text) == {"task_id": task, "state": "delivered", "run": 1}
    assert len(await desk.kit.inbox(task)) == 1
    owner = await desk.kit.claim(task)
    await owner.append([], consume=await desk.kit.inbox(task))
    await owner.finish(DONE)
    result = await desk.call("SendMessage", {"to": task, "message": "again"}, "toolu_3")
    assert json.loads(result.text) == {"task_id": task, "state": "reopened", "run": 2}
    assert desk.wakeups.sent[-1][:2] == (task, 2)


async def test_messages_stay_in_the_session_and_say_something(desk: Desk) -> None:
    task = await desk.agent()
    stranger = ids.child(ids.new_session(), Kind.AGENT, "toolu_1")
    unknown = ids.child(desk.lease.task_id, Kind.AGENT, "toolu_9")
    for to in (stranger, desk.lease.task_id, "a-1", "../x"):
        assert (await desk.call("SendMessage", {"to": to, "message": "x"}, "toolu_2")).is_error
        assert (await desk.call("TaskStop", {"task_id": to}, "toolu_3")).is_error
    assert (await desk.call("SendMessage", {"to": unknown, "message": "x"}, "toolu_4")).text == "not sent: unknown task"
    assert (await desk.call("SendMessage", {"to": task, "message": " "}, "toolu_5")).is_error
    assert (await desk.call("TaskStop", {"task_id": unknown}, "toolu_6")).is_error
    assert await desk.kit.inbox(task) == ()


async def test_a_stop_is_confirmed_and_said_once_more_after_a_takeover(desk: Desk) -> None:
    task = await desk.agent()
    for _ in range(2):
        result = await desk.call("TaskStop", {"task_id": task}, "toolu_2")
        assert result.text == f"{task}: stopped"
    other = await desk.call("TaskStop", {"task_id": task}, "toolu_3")
    assert other.text == f"{task}: already finished (stopped)"
    assert await desk.kit.state(task) is State.STOPPED
