"""The chaos programs' own arithmetic: a measure that cannot fail would prove nothing."""

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line, Origin
from celeriac.common.substrate.reading import Raw
from celeriac.common.testing.substrate_checker import Session, Task, World
from celeriac.ops.chaos.checker import _requests, _task
from celeriac.ops.chaos.many import longest_with_room

SESSION = TaskId("s-0123456789abc")


def test_a_wait_without_room_does_not_count() -> None:
    first, second = (0, 10, 5000), (0, 10, 6000)
    assert longest_with_room([first, second], 2) == 10
    assert longest_with_room([first, second, (0, 5300, 7000)], 2) == 300
    assert longest_with_room([first, second, (0, 5300, 7000)], 3) == 5300


def test_each_stretch_with_room_counts_by_itself() -> None:
    lives = [(0, 0, 100), (0, 400, 1000), (0, 1200, 2000)]
    assert longest_with_room(lives, 1) == 300


def world(fence: int) -> World:
    fields = {"path": "s", "fence": str(fence), "run": "1"}
    return World({SESSION: Task(SESSION, Raw(fields, (), ()), (), {})})


def asked(turn: int, status: int = 200) -> JsonObject:
    return {"event": "request", "session": SESSION, "path": "s", "run": 1, "turn": turn, "status": status}


def test_the_same_call_twice_is_a_fault_unless_a_takeover_explains_it() -> None:
    assert list(_requests(world(1), [asked(1), asked(2)])) == []
    assert len(list(_requests(world(1), [asked(1), asked(1)]))) == 1
    assert list(_requests(world(2), [asked(1), asked(1)])) == []
    assert len(list(_requests(world(2), [asked(1), asked(1), asked(2), asked(2)]))) == 1


def test_a_refused_request_is_a_fault() -> None:
    assert len(list(_requests(world(9), [asked(1, 400)]))) == 1


def test_an_ended_task_that_holds_or_misses_something_is_a_fault() -> None:
    fields = {"path": "s", "fence": "1", "run": "1", "state": "completed", "kind": "s", "owner": "1/x"}
    call: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
    line = Line(seq=0, time=1, token="1/x", run=1, turn=1, role="assistant", content=(call,), origin=Origin.MODEL)
    task = Task(SESSION, Raw(fields, ("n:a:1",), ()), (line,), {})
    session = Session(frozenset(), frozenset(), {"n:a:1": "{}"}, {}, {})
    found = list(_task(World({SESSION: task}, {SESSION: session}), task))
    assert found == ["has a lease", "n:a:1 was never consumed", "toolu_1 has no call or no result", "n:a:1 has no fate"]
