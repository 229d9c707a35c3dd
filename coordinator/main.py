"""Composition root of the coordinator process: sessions, supervisor, and the one blocked reader."""

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress

from celeriac.common import logs
from celeriac.common.llm.models import Models, api_client
from celeriac.common.policy.decide import StandardPermissions
from celeriac.common.queue.celery_app import make_app
from celeriac.common.queue.wakeups import WakeUps
from celeriac.common.runtime.holdings import Holdings
from celeriac.common.runtime.runner import Runner
from celeriac.common.settings import Settings
from celeriac.common.substrate.opening import open_substrate
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.inbox import HintReader
from celeriac.coordinator.session import Session
from celeriac.coordinator.sessions import Sessions
from celeriac.coordinator.supervisor import Supervisor

HAND_OVER_SECONDS = 10.0
"""How long a closing coordinator may take to hand its sessions over."""


def process_name(role: str, name: str | None = None) -> str:
    """`coordinator@host-pid-xxxx`: unique for every start, so that hints never reach a successor by chance."""
    return f"{name or role}@{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


def main(settings: Settings, *, name: str | None = None) -> None:
    """Run until SIGTERM or SIGINT, then hand over the sessions."""
    logs.configure(settings)
    asyncio.run(serve(settings, process_name("coordinator", name)))


async def serve(settings: Settings, process: str) -> None:
    """Run in this loop until a signal. Raises ServerUnreachable if the server does not answer at the start."""
    substrate = open_substrate(settings)
    await substrate.ping()
    wakeups = WakeUps(make_app(settings.redis.url or "", settings.redis.prefix, ours=True))
    api = api_client(settings.llm)
    runner = Runner(
        substrate=substrate,
        models=Models(substrate, api),
        permissions=StandardPermissions(),
        settings=settings,
        holdings=Holdings(),
        process=process,
    )
    dispatcher = Dispatcher(substrate, wakeups)
    try:
        await _serve(settings, runner, Session(runner, dispatcher, wakeups), dispatcher)
    finally:
        wakeups.close()
        await api.aclose()
        await substrate.aclose()


async def _serve(settings: Settings, runner: Runner, session: Session, dispatcher: Dispatcher) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as bound, asyncio.TaskGroup() as running:
            sessions = Sessions(session, running, most=settings.coordinator.sessions)
            duties = _duties(settings, sessions, dispatcher, runner)
            tasks = [running.create_task(duty, name=name) for name, duty in duties.items()]
            print(f"celeriac coordinator ready: {runner.process}", file=sys.stderr, flush=True)
            await stop.wait()
            for task in tasks:
                task.cancel()
            runner.holdings.shut_down()
            bound.reschedule(loop.time() + HAND_OVER_SECONDS)  # the group waits for the sessions, this long at most


def _duties(
    settings: Settings, sessions: Sessions, dispatcher: Dispatcher, runner: Runner
) -> dict[str, Coroutine[None, None, None]]:
    """What the process does beside its sessions, by name."""
    scan_seconds, lease_ms = settings.supervisor.scan_seconds, runner.substrate.lease_ms
    return {
        "supervisor": Supervisor(dispatcher, sessions, scan_seconds=scan_seconds, lease_ms=lease_ms).run(),
        "hints": HintReader(sessions, dispatcher, runner.process).run(),
    }
