"""`worker`, `coordinator`, `flower`: the commands that start a process of the cluster."""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

import click

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.json import JsonValue
from celeriac.common.contract.workspaces import workspace_label
from celeriac.common.logs import configure
from celeriac.common.settings import Settings, load
from celeriac.common.testing.points import install
from celeriac.coordinator.client import Client
from celeriac.coordinator.servers import resolve_url

Command = TypeVar("Command", bound=Callable[..., object])

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
ORPHAN_GRACE_SECONDS = 10.0
"""After SIGTERM at the death of `run`: its server is gone too, so a graceful end may never come."""
PARENT_POLL_SECONDS = 1.0

log = logging.getLogger(__name__)

redis_url = click.option("--redis-url", metavar="URL", help="Server to use; else CELERIAC_REDIS_URL or the settings.")
process_name = click.option("--name", help="Name of this process; default: one is made of host and pid.")
parent_pid = click.option("--parent-pid", type=int, hidden=True, help="End when this parent does.")


def _held_by(ctx: click.Context, option: click.Parameter, folder: Path | None) -> None:
    if folder is not None:
        install(folder)


points = click.option(
    "--points",
    type=click.Path(path_type=Path),
    hidden=True,
    expose_value=False,
    callback=_held_by,
    help="Be held at named points by the files in this folder (tests).",
)


_WORKER_OPTIONS = (
    click.option("--concurrency", type=click.IntRange(min=1), help="Most tasks at once in a worker."),
    click.option("--label", "labels", multiple=True, help="Also serve the queues with this label; may be repeated."),
    click.option(
        "--workspace",
        "workspaces",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Also serve the queues of jobs in this folder; may be repeated.",
    ),
)


class WorkerFlags(TypedDict):
    """What `worker_options` gives to a command."""

    concurrency: int | None
    labels: tuple[str, ...]
    workspaces: tuple[Path, ...]


def worker_options(command: Command) -> Command:
    """What a worker serves."""
    for option in reversed(_WORKER_OPTIONS):
        command = option(command)
    return command


def worker_settings(flags: WorkerFlags) -> dict[str, JsonValue]:
    """The same as settings. Raises UsageError."""
    every: list[JsonValue] = [*flags["labels"], *map(_label_of, flags["workspaces"])]
    return {"worker.concurrency": flags["concurrency"], "worker.labels": every or None}


@click.command()
@redis_url
@worker_options
@process_name
@parent_pid
@points
def worker(redis_url: str | None, name: str | None, parent_pid: int | None, **flags: Unpack[WorkerFlags]) -> int:
    """Start a worker: it runs agents and commands until SIGTERM."""
    die_with(parent_pid)
    settings = process_settings({"redis.url": redis_url, **worker_settings(flags)})
    from celeriac.workers.main import main  # noqa: PLC0415 - loads celery, after the server was found to answer

    main(settings, name=name)
    return 0


@click.command()
@redis_url
@process_name
@parent_pid
@points
def coordinator(redis_url: str | None, name: str | None, parent_pid: int | None) -> int:
    """Start a coordinator: it runs sessions and supervises tasks until SIGTERM."""
    die_with(parent_pid)
    settings = process_settings({"redis.url": redis_url})
    from celeriac.coordinator.main import main  # noqa: PLC0415 - loads celery and anthropic

    main(settings, name=name)
    return 0


@click.command()
@redis_url
@click.option("--port", type=click.IntRange(0, 65535), help="Port on the loopback interface; 0: a free one.")
@parent_pid
def flower(redis_url: str | None, port: int | None, parent_pid: int | None) -> int:
    """Start the Flower console on 127.0.0.1, with a password."""
    die_with(parent_pid)
    settings = process_settings({"redis.url": redis_url, "flower.port": port})
    from celeriac.ops.flower.console import main  # noqa: PLC0415 - loads celery and tornado

    main(settings)
    return 0


def process_settings(flags: dict[str, JsonValue]) -> Settings:
    """Settings of a long-lived process, with the server's URL filled in once it has answered.

    No project's files are read: such a process serves many. Raises ServerUnreachable, which says how to start one.
    """
    settings = load(flags, cwd=None)
    configure(settings)
    asyncio.run(_check(settings))
    return settings.model_copy(
        update={"redis": settings.redis.model_copy(update={"url": resolve_url(settings.redis.url, settings.home)})}
    )


async def _check(settings: Settings) -> None:
    async with Client.connect(settings):
        pass


def _label_of(workspace: Path) -> str:
    if not workspace.is_dir():
        raise UsageError(f"the workspace {workspace} is not a folder")
    return workspace_label(socket.gethostname(), str(workspace.resolve()))


def die_with(parent: int | None) -> None:
    """End with the process `parent`, which started this one: SIGTERM at its death, SIGKILL a little later."""
    if parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        log.warning("prctl is not to be had here: the death of the parent is only seen by polling")
    if os.getppid() != parent:
        raise UsageError(f"the parent {parent} has ended already")
    threading.Thread(target=_watch_parent, args=(parent,), name="watch parent", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
