"""Dispatch: record first, wake-up second, `queued` third (PROTOCOL 4). Dispatching again after a crash makes nothing
new."""

from dataclasses import dataclass

from celeriac.common.contract import ids
from celeriac.common.contract.errors import Refused
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.task import Record
from celeriac.common.queue.wakeups import Wakeable, WakeUps
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import Created, NewTask, Sent
from celeriac.common.testing.points import point

REFUSALS = {
    Created.MISMATCH: "a different task with this id exists already",
    Created.STOPPING: "the session is being stopped: nothing new is started",
}


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Creates tasks and wakes them."""

    substrate: Substrate
    wakeups: WakeUps

    async def dispatch(self, task: NewTask, *, parent_token: str) -> Record:
        """Create the task and have a worker woken; the record as it is now. Raises Refused, LeaseLost."""
        created = await self.substrate.records.create(task, parent_token=parent_token)
        if created in REFUSALS:
            raise Refused(REFUSALS[created])
        await self._wake(task, run=1)
        await self.substrate.records.mark_queued(task.task_id, 1)
        return await self.substrate.records.get(task.task_id)

    async def send_message(self, to: TaskId, text: str, *, op: str, sender: tuple[TaskId, str]) -> Sent:
        """Deliver a message, and wake the task if that opened a new run or ended a park. Raises LeaseLost."""
        sent = await self.substrate.inboxes.send_message(to, op, text, op=op, sender=sender)
        if sent.wake is not None:
            await self.wake(to, run=sent.wake.run, attempt=sent.wake.attempt)
            await self.substrate.records.mark_queued(to, sent.wake.run)
        return sent

    async def wake(self, task_id: TaskId, *, run: int, attempt: int = 0) -> None:
        """Send one wake-up: a Celery message, or a hint for a session."""
        if ids.session_of(task_id) == task_id:
            await self.substrate.hints.push_sessions(task_id)
            return
        await self._wake(await self.substrate.records.get(task_id), run=run, attempt=attempt)

    async def _wake(self, task: Wakeable, *, run: int, attempt: int = 0) -> None:
        await point("wake.before", task.task_id)
        await self.wakeups.send(task, run=run, attempt=attempt)
        await point("wake.after", task.task_id)
