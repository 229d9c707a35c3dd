"""What Celery hands over: envelopes, rubbish, and the stops of Flower."""

import pytest
from celery import Celery
from celery.exceptions import Ignore
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from celeriac.common.contract import ids
from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.queue.celery_app import RUN_TASK
from celeriac.common.queue.reports import Report
from celeriac.workers.entrypoints import register, request_class, task_of_message

SESSION = ids.new_session()
AGENT = ids.child(SESSION, Kind.AGENT, "toolu_1")


class Bridge:
    """Keeps what it is asked for."""

    def __init__(self, report: Report | None = None) -> None:
        self.report = report or Report("done")
        self.ran: list[Envelope] = []
        self.stopped: list[TaskId] = []

    def run(self, envelope: Envelope) -> Report:
        self.ran.append(envelope)
        return self.report

    def request_stop(self, task_id: TaskId) -> None:
        self.stopped.append(task_id)


def test_every_message_id_names_its_task() -> None:
    for run, attempt in [(1, 0), (1, 2), (3, 0)]:
        assert task_of_message(Envelope(task_id=AGENT, run=run, attempt=attempt).message_id()) == AGENT
    assert task_of_message("6c1f6f5e-0000-4000-8000-000000000000") is None
    assert task_of_message("") is None


def test_the_task_runs_an_envelope_and_refuses_anything_else() -> None:
    app, bridge = Celery("test", set_as_current=False), Bridge()
    register(app, bridge)
    body = app.tasks[RUN_TASK].run
    assert body({"v": 1, "task_id": AGENT, "run": 2}) == "done"
    assert bridge.ran == [Envelope(task_id=AGENT, run=2)]
    other = [{"v": 2, "task_id": AGENT, "run": 1}, {"v": 1, "task_id": "a-zzz", "run": 1}]
    for rubbish in ({}, "x", *other):
        with pytest.raises(ValueError, match="not an envelope"):
            body(rubbish)
    assert len(bridge.ran) == 1


@pytest.mark.parametrize("failure", [None, OperationalError("away")])
@pytest.mark.parametrize("event", ["task-failed", "task-revoked"])
def test_a_run_that_did_not_complete_is_no_success_for_listeners(
    event: str, failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, sent = Celery("test", set_as_current=False), []
    register(app, Bridge(Report("it broke", event, 1.5)))

    def send_event(kind: str, **fields: object) -> None:
        sent.append((kind, fields["exception"], fields["runtime"]))
        if failure is not None:
            raise failure

    monkeypatch.setattr(app.tasks[RUN_TASK], "send_event", send_event)
    with pytest.raises(Ignore):
        app.tasks[RUN_TASK].run({"v": 1, "task_id": AGENT, "run": 1})
    assert sent == [(event, "it broke", 1.5)]


@pytest.mark.parametrize("text", ["", "a-1", "a-{x}:t", f"a-{26 * '0'}\n.", "s-0123456789abc}:t:s-0123456789abc"])
def test_an_envelope_holds_a_real_id(text: str) -> None:
    with pytest.raises(ValidationError):
        Envelope(task_id=TaskId(text), run=1)


def test_a_revoked_or_terminated_message_stops_its_task() -> None:
    bridge = Bridge()
    request = object.__new__(request_class(bridge.request_stop))
    request.id = f"{AGENT}.1.4"
    request.terminate(None)
    request.id = "no id of ours"
    request.terminate(None)
    assert bridge.stopped == [AGENT]
