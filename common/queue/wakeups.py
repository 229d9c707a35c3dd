"""Sends wake-ups: small Celery messages with ids only. One may be lost, late or doubled without harm (PROTOCOL 3)."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from celery import Celery
from celery.events import EventDispatcher
from kombu.exceptions import OperationalError

from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.kinds import TITLES, Kind
from celeriac.common.contract.task import Record
from celeriac.common.logs import redact
from celeriac.common.queue.celery_app import RUN_TASK
from celeriac.common.queue.reports import report_of
from celeriac.common.queue.routing import queue_for

TITLE_WIDTH = 120
"""Characters of a title in the broker and in Flower: enough to know it by, too little to hold a prompt."""

EVENTS_SECONDS = 2.0
"""How long a session may be held up by what Flower is told of it: much less than a lease."""

log = logging.getLogger(__name__)


class WakeUps:
    """Sends from asyncio through one thread, since Celery's producer blocks."""

    def __init__(self, app: Celery) -> None:
        """`app` from `make_app`."""
        self._app = app
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wakeups")

    async def send(self, record: Record, *, run: int, attempt: int = 0) -> None:
        """Send one; a broker that does not answer is logged, and the supervisor sends again."""
        envelope = Envelope(task_id=record.task_id, run=run, attempt=attempt)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._send, record, envelope)
        except OperationalError as error:
            log.warning("wake-up of %s not sent, it will be sent again: %s", record.task_id, error)
        except Exception:  # a border: whatever the broker answers, the record is written already
            log.exception("wake-up of %s not sent, it will be sent again", record.task_id)

    def _send(self, record: Record, envelope: Envelope) -> None:
        label = record.workspace.label if record.workspace is not None and record.labels else None
        self._app.send_task(
            RUN_TASK,
            args=[envelope.model_dump(mode="json")],
            task_id=envelope.message_id(),
            queue=queue_for(record.kind, label),
            argsrepr=shown(record.kind, record.title),
            kwargsrepr="{}",
        )

    async def session_started(self, record: Record, worker: str) -> None:
        """Have Flower list a session; best effort, Flower decides nothing."""
        await self._events(record, worker, "task-received", "task-started")

    async def session_ended(self, record: Record, worker: str) -> None:
        """Tell Flower how a session ended; `record` is read after its end."""
        report = report_of(record, record.run)
        await self._events(record, worker, report.event, **report.fields())

    async def _events(self, record: Record, worker: str, *types: str, **more: str | float) -> None:
        shown_as = shown(Kind.SESSION, record.title)
        fields = {"uuid": record.task_id, "name": "celeriac.session", "args": shown_as, "kwargs": "{}", "retries": 0}

        def send() -> None:
            with self._app.connection_for_write() as connection, EventDispatcher(connection, hostname=worker) as events:
                for kind in types:
                    events.send(kind, **fields, **more)

        try:
            async with asyncio.timeout(EVENTS_SECONDS):
                await asyncio.get_running_loop().run_in_executor(self._thread, send)
        except (OperationalError, TimeoutError) as error:
            log.warning("events of %s not sent: %s", record.task_id, error)
        except Exception:  # a border: what people look at must not harm what they look at
            log.exception("events of %s not sent", record.task_id)

    def close(self) -> None:
        """Let the sending thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def shown(kind: Kind, title: str) -> str:
    """`agent: Fix the failing test`: how a task reads in Flower; no prompt, and nothing that looks like a key."""
    return redact(f"{TITLES[kind]}: {' '.join(title.split())[:TITLE_WIDTH]}")
