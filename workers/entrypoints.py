"""Where Celery hands a message over: one call into the process's loop (DESIGN 4). Stops from Flower become ours
here."""

import logging
from collections.abc import Callable
from typing import Protocol

from celery import Celery, Task
from celery.exceptions import Ignore
from celery.worker.request import Request
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from celeriac.common.contract import ids
from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.errors import BadId
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.queue.celery_app import RUN_TASK
from celeriac.common.queue.reports import SUCCEEDED, Report

log = logging.getLogger(__name__)


class Bridge(Protocol):
    """From Celery's threads into the process's loop."""

    def run(self, envelope: Envelope) -> Report:
        """Execute and wait."""
        ...

    def request_stop(self, task_id: TaskId) -> None:
        """Have the task stopped; does not wait."""
        ...


def task_of_message(message_id: str) -> TaskId | None:
    """The task that a Celery id belongs to: the id itself, or `{id}.{run}.{n}`."""
    try:
        return ids.parse(message_id.partition(".")[0])
    except BadId:
        return None


def request_class(stop: Callable[[TaskId], None]) -> type[Request]:
    """A Celery request whose revocation, with terminate or without, asks for a stop of the task."""

    class StoppableRequest(Request):  # type: ignore[misc]  # celery has no types
        """Revocations lead to the substrate, which decides; nothing is killed by Celery."""

        def terminate(self, pool: object, signal: object = None) -> None:
            """Flower's Terminate button, or `celery control terminate`."""
            self._stop()

        def revoked(self) -> bool:
            """Celery asks this before it runs a message; a revoked one is dropped, and the task stopped."""
            gone = bool(super().revoked())
            if gone:
                self._stop()
            return gone

        def _stop(self) -> None:
            if (task_id := task_of_message(self.id)) is not None:
                stop(task_id)

    return StoppableRequest


def register(app: Celery, bridge: Bridge) -> None:
    """Register the one task that workers run."""

    class RunTask(Task):  # type: ignore[misc]  # celery has no types
        """Runs the task that an envelope names."""

        name = RUN_TASK
        Request = request_class(bridge.request_stop)
        ignore_result = True

        def run(self, message: JsonObject) -> str:
            """The body: one call into the loop. A message that is no envelope is refused by name."""
            try:
                envelope = Envelope.model_validate(message)
            except ValidationError as error:
                raise ValueError(f"not an envelope: {error.error_count()} faults") from None
            report = bridge.run(envelope)
            if report.event == SUCCEEDED:
                return report.text
            self._tell(report)
            raise Ignore(report.text)

        def _tell(self, report: Report) -> None:
            """For Celery every message has succeeded that raised nothing; listeners are told how the run ended."""
            try:
                self.send_event(report.event, retry=False, **report.fields())
            except OperationalError as error:
                log.warning("%s not sent: %s", report.event, error)

    app.register_task(RunTask())
