"""Sends wake-ups: small Celery messages with ids only. One may be lost, late or doubled without harm (PROTOCOL 3)."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from celery import Celery
from kombu.exceptions import OperationalError

from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import TITLES, Kind
from celeriac.common.contract.task import Record, Workspace
from celeriac.common.logs import redact
from celeriac.common.queue.celery_app import RUN_TASK
from celeriac.common.queue.event_line import EventLine
from celeriac.common.queue.reports import report_of
from celeriac.common.queue.routing import queue_for

TITLE_WIDTH = 120
"""Characters of a title in the broker and in Flower: enough to know it by, too little to hold a prompt."""

EVENTS_SECONDS = 2.0
"""How long a session may be held up by what Flower is told of it: much less than a lease."""

log = logging.getLogger(__name__)


class Wakeable(Protocol):
    """What a wake-up tells of its task: a record, or a task that was created just now."""

    @property
    def task_id(self) -> TaskId:
        """Its id."""
        ...

    @property
    def kind(self) -> Kind:
        """Its form."""
        ...

    @property
    def title(self) -> str:
        """For people."""
        ...

    @property
    def workspace(self) -> Workspace | None:
        """The folder that it works in."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """What it needs of its host."""
        ...


class WakeUps:
    """Sends from asyncio through threads, since Celery's producer blocks: one for wake-ups, which never wait for what
    only people look at, and one for that."""

    def __init__(self, app: Celery) -> None:
        """`app` from `make_app`."""
        self._app = app
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wakeups")
        self._events = EventLine(app)
        self._events_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="events")

    async def send(self, task: Wakeable, *, run: int, attempt: int = 0) -> None:
        """Send one; a broker that does not answer is logged, and the supervisor sends again."""
        envelope = Envelope(task_id=task.task_id, run=run, attempt=attempt)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._send, task, envelope)
        except OperationalError as error:
            log.warning("wake-up of %s not sent, it will be sent again: %s", task.task_id, error)
        except Exception:  # a border: whatever the broker answers, the record is written already
            log.exception("wake-up of %s not sent, it will be sent again", task.task_id)

    def _send(self, task: Wakeable, envelope: Envelope) -> None:
        label = task.workspace.label if task.workspace is not None and task.labels else None
        self._app.send_task(
            RUN_TASK,
            args=[envelope.model_dump(mode="json")],
            task_id=envelope.message_id(),
            queue=queue_for(task.kind, label),
            argsrepr=shown(task.kind, task.title),
            kwargsrepr="{}",
        )

    async def session_started(self, record: Record, worker: str) -> None:
        """Have Flower list a session; best effort, Flower decides nothing."""
        await self._tell(record, worker, "task-received", "task-started")

    async def session_ended(self, record: Record, worker: str) -> None:
        """Tell Flower how a session ended; `record` is read after its end."""
        report = report_of(record, record.run)
        await self._tell(record, worker, report.event, **report.fields())

    async def _tell(self, record: Record, worker: str, *types: str, **more: str | float) -> None:
        fields: JsonObject = {
            "uuid": record.task_id,
            "name": "celeriac.session",
            "args": shown(Kind.SESSION, record.title),
            "kwargs": "{}",
            "retries": 0,
            **more,
        }
        try:
            async with asyncio.timeout(EVENTS_SECONDS):
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._events_thread, self._events.send, worker, types, fields)
        except (OperationalError, TimeoutError) as error:
            log.warning("events of %s not sent: %s", record.task_id, error)
        except Exception:  # a border: what people look at must not harm what they look at
            log.exception("events of %s not sent", record.task_id)

    def close(self) -> None:
        """Let the sending threads end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._events_thread.submit(self._events.close)
        self._events_thread.shutdown(wait=False)


def shown(kind: Kind, title: str) -> str:
    """`agent: Fix the failing test`: how a task reads in Flower; no prompt, and nothing that looks like a key."""
    return redact(f"{TITLES[kind]}: {' '.join(title.split())[:TITLE_WIDTH]}")
