"""What a Celery message carries: ids only (DESIGN 3). A message is a wake-up, never the ownership."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from celeriac.common.contract import ids
from celeriac.common.contract.errors import BadId
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.task import Value


def _checked(text: TaskId) -> TaskId:
    """Whoever can reach the broker can put any text there; keys are computed from what passes."""
    try:
        return ids.parse(text)
    except BadId as error:
        raise ValueError(str(error)) from error


class Envelope(Value):
    """One wake-up of one run of one task."""

    v: Literal[1] = 1
    task_id: Annotated[TaskId, AfterValidator(_checked)]
    run: int
    attempt: int = 0
    """How many wake-ups of this run were sent before this one."""
    ticket: str = ""
    """Signed capabilities; empty and accepted until tickets exist."""

    def message_id(self) -> str:
        """The Celery id: the task's own id first, a fresh one for every later message (Celery drops ids ever
        revoked)."""
        first = self.run == 1 and self.attempt == 0
        return self.task_id if first else f"{self.task_id}.{self.run}.{self.attempt}"
