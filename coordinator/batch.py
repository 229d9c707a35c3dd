"""Many jobs at once: all of them are checked before the first is submitted, and results come as they end.

Knows what a job is, no server and no file.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.ids import TaskId
from celeriac.common.settings import Settings
from celeriac.coordinator.jobs import JobOptions, JobResult, Submission, prepare

PARALLEL = 8
"""Jobs of one batch that are open at a time unless the caller says otherwise: what one worker machine runs well."""

Asked = tuple[str | None, JobOptions]
"""A prompt (None: the replay's) and how it is to be run."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One job of a batch; nothing of it exists yet."""

    number: int
    """Its place in the batch, from 1, or its line in the file."""
    submission: Submission


class Faults:
    """Collects what is wrong with a batch, so that all of it is told at once."""

    def __init__(self, source: str) -> None:
        """`source`: what the batch is called in the error, and what one of its members is."""
        self._source = source
        self._found: list[str] = []
        self._first: dict[TaskId, int] = {}

    def add(self, number: int, why: object) -> None:
        """The member `number` is wrong."""
        self._found.append(f"line {number}: {why}")

    def same_key(self, checked: Checked) -> None:
        """Two members with one idempotency key would be one job."""
        first = self._first.setdefault(checked.submission.task.task_id, checked.number)
        if first != checked.number:
            self.add(checked.number, f"it has the idempotency key of line {first}")

    def check(self) -> None:
        """Raises UsageError with all that was found."""
        if self._found:
            found = "\n  ".join(self._found)
            raise UsageError(f"{self._source}: nothing was submitted, {len(self._found)} to correct:\n  {found}")


def check_all(jobs: Iterable[Asked], settings: Settings) -> tuple[Checked, ...]:
    """Check every job, numbered from 1. Raises UsageError that names all faults."""
    faults, checked = Faults("the batch"), []
    for number, (prompt, options) in enumerate(jobs, 1):
        try:
            one = Checked(number, prepare(prompt, options, settings))
        except UsageError as error:
            faults.add(number, error)
        else:
            faults.same_key(one)
            checked.append(one)
    faults.check()
    return tuple(checked)


async def as_they_end(
    batch: Sequence[Checked], run: Callable[[Submission], Coroutine[object, object, JobResult]], parallel: int
) -> AsyncGenerator[tuple[int, JobResult], None]:
    """Run each, at most `parallel` at a time, in order; (number, result) of each when it ends.

    Whoever stops reading leaves the jobs that are open to themselves. Raises UsageError for a `parallel` below 1.
    """
    if parallel < 1:
        raise UsageError(f"{parallel} jobs at a time can never end; give at least 1")
    waiting: dict[asyncio.Task[JobResult], int] = {}
    upcoming = iter(batch)
    try:
        while True:
            for one in islice(upcoming, parallel - len(waiting)):
                task = asyncio.create_task(run(one.submission), name=f"job {one.number} of a batch")
                waiting[task] = one.number
            if not waiting:
                return
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                yield waiting.pop(task), task.result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
