"""`celeriac up`: server, coordinator, workers and Flower on this machine, kept alive until Ctrl-C ends them all."""

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Unpack

import click
from pydantic import SecretStr

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.logs import configure
from celeriac.common.settings import Settings, environment, load
from celeriac.common.substrate.embedded import free_port
from celeriac.coordinator.commands.options import run_async
from celeriac.coordinator.interrupts import Interrupts
from celeriac.coordinator.servers import shown
from celeriac.ops.folders import child_environment, not_writable, private, run_folder
from celeriac.ops.keeping import Keeper, ProcessPart, ServerPart
from celeriac.ops.log_files import new_logs
from celeriac.ops.ports import ADDRESS, must_be_free
from celeriac.ops.processes import WorkerFlags, worker_options, worker_settings
from celeriac.ops.run_file import announced, only_one

SERVER_FOLDER = "server"
"""In the home: the server's data, which outlives each `up`."""
MOST_WORKERS = 64
INTERRUPTED = 130
"""Exit code of a start that Ctrl-C broke off."""
KEY_VARIABLE = "ANTHROPIC_API_KEY"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall run beside server and coordinator."""

    workers: int
    port: int | None
    """Of the server; None: a free one."""
    flower: bool


@click.command()
@click.option(
    "--workers", type=click.IntRange(1, MOST_WORKERS), default=1, help="How many worker processes (default 1)."
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the server on 127.0.0.1; default: a free one.")
@click.option("--flower-port", type=click.IntRange(0, 65535), help="Port of Flower (default 5555); 0: a free one.")
@click.option("--no-flower", is_flag=True, help="Without the Flower console.")
@worker_options
def up(workers: int, port: int | None, flower_port: int | None, no_flower: bool, **flags: Unpack[WorkerFlags]) -> int:
    """Start everything on this machine: server, coordinator, workers and Flower.

    Other shells find it by themselves: `celeriac submit PROMPT` works at once. What ends by accident is started again;
    each process writes to a log that `celeriac logs` shows. Jobs stay in the Celeriac home, so that the next
    `celeriac up` goes on with them.

    Ctrl-C ends all: running tasks are handed over to the next start. Ctrl-C twice kills. Exit code 0 after a start that
    worked, 130 when it was broken off, 1 when another one runs here or a process cannot be kept alive.
    """
    settings = load({"flower.port": flower_port, **worker_settings(flags)}, cwd=None)
    configure(settings, level="warning")
    return run_async(Up(settings, environment(), Wanted(workers, port, not no_flower)).run())


def say(text: str) -> None:
    """A line for whoever watches; a terminal that was closed meanwhile must not end anything."""
    with suppress(OSError):
        sys.stderr.write(f"celeriac: {text}\n")
        sys.stderr.flush()


class Up:
    """One `up`."""

    def __init__(self, settings: Settings, environ: dict[str, str], wanted: Wanted) -> None:
        """Nothing is started yet. `environ`: what the children inherit."""
        self._settings, self._password = with_password(settings)
        self._environ = environ
        self._wanted = wanted
        self._children: list[ProcessPart] = []
        self._is_ready = False

    async def run(self) -> int:
        """Start, keep alive, end; the exit code. Raises AlreadyRuns, PortTaken, DidNotStart, CrashLoop."""
        with Interrupts() as interrupts:
            killer = asyncio.create_task(self._kill_at_second(interrupts), name="kill at the second signal")
            try:
                await interrupts.attend(self._serve())
            except BaseExceptionGroup as group:
                raise _first(group) from None
            finally:
                killer.cancel()
        say("everything has ended")
        return 0 if self._is_ready else INTERRUPTED

    async def _kill_at_second(self, interrupts: Interrupts) -> None:
        await interrupts.reached(1)
        say("ending; Ctrl-C again kills")
        await interrupts.reached(2)
        for child in self._children:
            child.kill()

    async def _serve(self) -> NoReturn:
        home = self._settings.home
        with only_one(home), self._folders() as (folder, logs):
            self._check_ports()
            server = ServerPart(
                private(home / SERVER_FOLDER), port=self._wanted.port, search_path=self._environ.get("PATH", os.defpath)
            )
            keeper = Keeper(server, say)
            async with asyncio.TaskGroup() as outer:  # the server is the last to go: the others hand over through it
                outer.create_task(keeper.keep(), name="keep server")
                await keeper.ready.wait()
                env = child_environment(self._settings, self._environ, folder, server.url)
                self._children = list(self._parts(folder, env, logs))
                await self._keep_children(server.url)
        raise AssertionError("the keepers never return")

    async def _keep_children(self, url: str) -> None:
        keepers = [Keeper(part, say) for part in self._children]
        async with asyncio.TaskGroup() as group:
            for keeper, part in zip(keepers, self._children, strict=True):
                group.create_task(keeper.keep(), name=f"keep {part.name}")
            for keeper in keepers:
                await keeper.ready.wait()
            with announced(self._settings.home, url, flower=self._flower_address()):
                self._is_ready = True
                self._tell(url)
                await asyncio.get_running_loop().create_future()  # until cancelled

    @contextmanager
    def _folders(self) -> Iterator[tuple[Path, Path]]:
        """The folder of this start, gone afterwards, and that of the logs. Raises UsageError."""
        home = self._settings.home
        with ExitStack() as stack:
            folder = run_folder(home)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                logs = new_logs(home)
            except OSError as error:
                raise not_writable(home, error) from error
            yield folder, logs

    def _check_ports(self) -> None:
        if self._wanted.port is not None:
            must_be_free(self._wanted.port, "choose another with --port")
        if self._wanted.flower:
            must_be_free(self._settings.flower.port, "choose another for Flower with --flower-port, or --no-flower")

    def _parts(self, folder: Path, env: dict[str, str], logs: Path) -> Iterable[ProcessPart]:
        worker = self._settings.worker
        serves = ["--concurrency", str(worker.concurrency), *(f"--label={label}" for label in worker.labels)]
        for name in ("coordinator", *(f"worker-{number + 1}" for number in range(self._wanted.workers))):
            role = name.partition("-")[0]
            arguments = ["--name", name, *(serves if role == "worker" else [])]
            yield ProcessPart(role, name, arguments, folder=folder, environment=env, logs=logs)
        if self._wanted.flower:
            # It asks no model, so it gets no key; it would make up another password at each start.
            own = {name: value for name, value in env.items() if name != KEY_VARIABLE}
            own["CELERIAC_FLOWER_PASSWORD"] = self._password
            port = ["--port", str(self._settings.flower.port)]
            yield ProcessPart("flower", "flower", port, folder=folder, environment=own, logs=logs)

    def _flower_address(self) -> str | None:
        return f"http://{ADDRESS}:{self._settings.flower.port}" if self._wanted.flower else None

    def _tell(self, url: str) -> None:
        """What people need now."""
        settings, workers = self._settings, self._wanted.workers
        say(f"up: server {url}, 1 coordinator, {workers} worker{'s' * (workers > 1)}, home {settings.home}")
        if address := self._flower_address():
            say(f"Flower: {address} user {settings.flower.user}, password {self._password}")
        if settings.redis.url is not None:
            say(f"warning: settings or environment name {shown(settings.redis.url)}: clients use that, not this server")
        if settings.llm.api_key is None and settings.llm.base_url is None:
            say(f"warning: no key for the model: set {KEY_VARIABLE} and start again (jobs with --replay need none)")
        say(f"commands run without a sandbox (sandbox.mode {settings.sandbox.mode})")
        say('next, in another shell: celeriac submit "PROMPT"; then follow, list, logs. Ctrl-C here ends all')


def with_password(settings: Settings) -> tuple[Settings, str]:
    """Settings with a port and a password for Flower, and that password: made up if nobody chose one."""
    flower = settings.flower
    chosen = flower.password.get_secret_value() if flower.password is not None else secrets.token_urlsafe(12)
    own = flower.model_copy(update={"password": SecretStr(chosen), "port": flower.port or free_port()})
    return settings.model_copy(update={"flower": own}), chosen


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the group: ours, if there is one."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, CeleriacError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
