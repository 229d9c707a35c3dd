"""The demonstration's own check: how many tasks ran at one moment."""

import pytest

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import State, Times, Usage
from celeriac.coordinator.jobs import TaskSummary
from celeriac.ops.demo import at_once


def ran(started: int, ended: int) -> TaskSummary:
    times = Times(created=0, queued=0, started=started, ended=ended)
    return TaskSummary(
        task_id=TaskId("a-x"), kind=Kind.AGENT, title="", state=State.COMPLETED, runs=1, usage=Usage(), times=times,
        duration_ms=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(1, 2)], 1),
        ([(1, 2), (2, 3), (3, 4)], 1),
        ([(1, 9), (2, 3), (4, 5)], 2),
        ([(1, 5), (4, 9), (3, 6), (6, 8)], 3),
        ([(0, 0), (0, 0)], 0),
    ],
)
def test_tasks_that_ran_at_one_moment_are_counted(spans: list[tuple[int, int]], most: int) -> None:
    assert at_once([ran(*span) for span in spans]) == most
