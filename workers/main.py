"""Composition root of a worker process: Celery's threads pool around one asyncio loop (DESIGN 4)."""

import asyncio
import gc
import logging
import os
import pwd
import secrets
import socket
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future

from anyio.from_thread import BlockingPortal, start_blocking_portal
from celery import Celery, signals
from celery.exceptions import SecurityWarning

from celeriac.common import logs
from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.ids import TaskId
from celeriac.common.llm.models import Models, api_client
from celeriac.common.policy.decide import StandardPermissions
from celeriac.common.queue.celery_app import make_app
from celeriac.common.queue.reports import Report
from celeriac.common.queue.routing import queues_for
from celeriac.common.runtime.holdings import Holdings
from celeriac.common.runtime.runner import Runner
from celeriac.common.settings import Settings
from celeriac.common.substrate.opening import open_substrate
from celeriac.workers.entrypoints import register
from celeriac.workers.execute import Worker, execute
from celeriac.workers.reader import read_hints
from celeriac.workers.shell.commands import Commands

log = logging.getLogger(__name__)


def main(settings: Settings, *, name: str | None = None) -> None:
    """Run until SIGTERM or SIGINT: running tasks are handed over, then the process ends."""
    run(settings, lambda portal: WorkerProcess(settings, portal, name))


def run(settings: Settings, build: Callable[[BlockingPortal], "WorkerProcess"]) -> None:
    """The same, for the process that `build` makes over the portal of its loop."""
    logs.configure(settings)
    warnings.filterwarnings("ignore", category=SecurityWarning)  # about root; our own first line says it
    with start_blocking_portal(backend="asyncio") as portal:
        process = build(portal)
        portal.call(process.open)
        try:
            process.serve()
        finally:
            portal.call(process.close)


class WorkerProcess:
    """Implements `entrypoints.Bridge` over one portal."""

    def __init__(self, settings: Settings, portal: BlockingPortal, name: str | None) -> None:
        """Opens nothing yet."""
        self._settings = settings
        self._portal = portal
        self.name = f"{name or 'worker'}@{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"

    async def open(self) -> None:
        """Build what tasks share, in the loop that they run in. Raises ServerUnreachable."""
        settings = self._settings
        self.substrate = open_substrate(settings)
        await self.substrate.ping()
        self._api = api_client(settings.llm)
        self._holdings = Holdings()
        runner = Runner(
            substrate=self.substrate,
            models=Models(self.substrate, self._api),
            permissions=StandardPermissions(),
            settings=settings,
            holdings=self._holdings,
            process=self.name,
        )
        self._worker = Worker(runner, Commands(max_silence_s=self.substrate.lease_ms / 1000 * 2 / 3))
        reading = read_hints(self.substrate, self._holdings, self.name)
        self._reader = asyncio.create_task(reading, name="hints")
        gc.freeze()  # what is loaded by now stays: each look through all of it would hold up every task by 100 ms

    def serve(self) -> None:
        """Consume until told to end."""
        mode = self._settings.sandbox.mode
        print(
            f"celeriac worker: sandbox {mode}, commands run with the rights of {_user()}", file=sys.stderr, flush=True
        )
        app = make_app(self._settings.redis.url or "", self._settings.redis.prefix, ours=True)
        register(app, self)
        signals.worker_ready.connect(self._ready, weak=False)
        signals.worker_shutting_down.connect(self._closing, weak=False)
        _consume(app, self._settings, self.name)

    def run(self, envelope: Envelope) -> Report:
        """Execute in the loop and wait."""
        return self._portal.call(execute, self._worker, envelope)

    def request_stop(self, task_id: TaskId) -> None:
        """Ask for a stop, from any thread."""
        self._portal.start_task_soon(self._stop, task_id).add_done_callback(_log_failure)

    async def _stop(self, task_id: TaskId) -> None:
        records = self.substrate.records
        await records.request_stop(
            task_id, kind="user", reason="stopped in Flower", op=f"flower:{secrets.token_hex(8)}"
        )
        await records.settle_stop(task_id)

    def _ready(self, **_: object) -> None:
        print(f"celeriac worker ready: {self.name}", file=sys.stderr, flush=True)

    def _closing(self, **_: object) -> None:
        self._portal.start_task_soon(self._shut_down).add_done_callback(_log_failure)

    async def _shut_down(self) -> None:
        self._holdings.shut_down()

    async def close(self) -> None:
        """Close what `open` opened."""
        self._reader.cancel()
        await self._api.aclose()
        await self.substrate.aclose()


def _consume(app: Celery, settings: Settings, name: str) -> None:
    worker = app.Worker(
        hostname=name,
        pool="threads",
        concurrency=settings.worker.concurrency,
        queues=queues_for(settings.worker.labels),
        loglevel=settings.log_level.upper(),
        without_mingle=True,
        without_gossip=True,
        quiet=True,  # no banner: our own lines say what people need
    )
    worker.start()
    if worker.exitcode:  # Celery met an error that it cannot mend; whoever started this process should know
        sys.exit(worker.exitcode)


def _user() -> str:
    """The name that commands run under; its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _log_failure(future: "Future[None]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("%s", error, exc_info=error)
