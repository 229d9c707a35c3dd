"""What Celery's listeners, such as Flower, are told of a run's end. Nothing is decided by it."""

from typing import NamedTuple

from celeriac.common.contract.notification import of_outcome
from celeriac.common.contract.task import Record, State
from celeriac.common.logs import redact

SUCCEEDED = "task-succeeded"
_EVENTS = {State.COMPLETED: SUCCEEDED, State.FAILED: "task-failed", State.STOPPED: "task-revoked"}


class Report(NamedTuple):
    """What became of a message or a session."""

    text: str
    event: str = SUCCEEDED
    """Type of Celery's event; a message that was dropped, or whose run goes on elsewhere, has done its part."""
    seconds: float = 0.0
    """How long the run took."""

    def fields(self) -> dict[str, str | float]:
        """Of the event: each type reads the ones that it knows."""
        return {"result": self.text, "exception": self.text, "runtime": self.seconds}


def report_of(record: Record, run: int) -> Report:
    """How this run ended, in one line without secrets; that it goes on, if it has not ended."""
    outcome, times = record.outcome, record.times
    if outcome is None or record.run != run:
        return Report(f"run {run} goes on")
    summary = of_outcome(record.task_id, record.title, outcome).summary
    seconds = (times.ended - times.started) / 1000 if times.started else 0.0
    return Report(redact(summary), _EVENTS[outcome.state], max(0.0, seconds))
