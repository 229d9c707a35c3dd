"""How a run's end is told to Celery's listeners."""

import pytest

from celeriac.common.contract.task import Outcome, Record, State, Subtype, Times
from celeriac.common.queue.reports import Report, report_of


def ended(record: Record, state: State, reason: str = "") -> Record:
    subtype = Subtype.SUCCESS if state is State.COMPLETED else Subtype.EXECUTION
    outcome = Outcome(state=state, subtype=subtype, reason=reason)
    return record.model_copy(update={"outcome": outcome, "times": Times(started=1_000, ended=3_500), "title": "Do it"})


@pytest.mark.parametrize(
    ("state", "event", "words"),
    [
        (State.COMPLETED, "task-succeeded", '"Do it" completed'),
        (State.FAILED, "task-failed", '"Do it" failed: exit 1'),
        (State.STOPPED, "task-revoked", '"Do it" was stopped'),
    ],
)
def test_an_end_is_told_as_what_it_was(state: State, event: str, words: str, record: Record) -> None:
    report = report_of(ended(record, state, "exit 1" if state is State.FAILED else ""), record.run)
    assert (report.event, report.seconds) == (event, 2.5) and report.text.startswith(words)
    assert report.fields() == {"result": report.text, "exception": report.text, "runtime": 2.5}


def test_a_run_that_goes_on_is_no_end(record: Record) -> None:
    assert report_of(record, 1) == Report("run 1 goes on")
    assert report_of(ended(record, State.FAILED), 7) == Report("run 7 goes on")


def test_a_run_that_never_began_took_no_time_and_no_secret_is_told(record: Record) -> None:
    key = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
    never = ended(record, State.STOPPED, key).model_copy(update={"times": Times(created=5, ended=9)})
    assert report_of(never, 1).seconds == 0 and key not in report_of(never, 1).text
