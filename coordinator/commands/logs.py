"""`logs`: what the processes of `celeriac up` wrote, or the live output of a task. Loads little before it must."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import click
from click.shell_completion import CompletionItem

from celeriac.common.contract.errors import BadSettings, CeleriacError
from celeriac.common.layers import ENVIRON, collect
from celeriac.coordinator.words import harmless

LOGS_FOLDER = "logs"
"""In the home: NAME.log of each process."""
SERVER_LOG = Path("server", "server.log")
"""In the home: the server writes it itself."""
LOOK_SECONDS = 0.2
"""How often files are looked at while they are followed."""
LINES_OF_ONE = 50
LINES_OF_EACH = 10


class NoSuchLog(CeleriacError):
    """Neither a process nor a task has this name."""

    exit_code = 5


def _known_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from celeriac.coordinator.commands.completing import known_ids  # noqa: PLC0415 - loads redis, only to complete

    try:
        names = [CompletionItem(name) for name in log_files(home_folder()) if name.startswith(incomplete)]
    except BadSettings:  # would be typed into somebody's command line
        return []
    return names + known_ids(ctx, parameter, incomplete)


@click.command()
@click.argument("name", metavar="[NAME|ID]", required=False, shell_complete=_known_names)
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C; for a task, until it has ended.")
@click.option("--lines", "-n", type=click.IntRange(min=0), help="Only the last N lines.")
@click.option("--redis-url", metavar="URL", help="Server of the task; else CELERIAC_REDIS_URL or the settings.")
def logs(name: str | None, follow: bool, lines: int | None, redis_url: str | None) -> int:
    """Print logs of the processes of `celeriac up`, or the live output of a task.

    Without an argument: the last 10 lines of each process. With NAME (coordinator, worker-1, flower, server): its last
    50 lines. With the id of a task: what it has put out so far, a command's output or a model's text.
    """
    home = home_folder()
    known = log_files(home)
    if name is not None and name not in known:
        if "-" not in name or name.startswith("worker-"):
            raise NoSuchLog(f"no process has the name {name!r} here; there are {', '.join(known) or 'none'}")
        from celeriac.coordinator.commands.output import show_output  # noqa: PLC0415 - loads pydantic and the client

        return show_output(name, follow=follow, lines=lines, redis_url=redis_url)
    if not known:
        raise NoSuchLog(f"there are no logs in {home}: `celeriac up` has not run there")
    board = LogBoard(home, name)
    board.show_last((LINES_OF_EACH if name is None else LINES_OF_ONE) if lines is None else lines)
    while follow:
        time.sleep(LOOK_SECONDS)
        board.show_new()
    return 0


def home_folder() -> Path:
    """The Celeriac home. Raises BadSettings."""
    return Path(str(collect({}, cwd=Path.cwd(), environ=ENVIRON)["home"][1]))


def log_files(home: Path) -> dict[str, Path]:
    """The logs of the last start of `up`, by the name of their process."""
    files = {file.stem: file for file in sorted((home / LOGS_FOLDER).glob("*.log"))}
    server = home / SERVER_LOG
    return {**files, "server": server} if server.is_file() else files


class LogBoard:
    """One log or all of a home on stdout; of all, each line begins with the name of its process."""

    def __init__(self, home: Path, name: str | None) -> None:
        """None: all, also those that come later."""
        self._home = home
        self._name = name
        self._tails: dict[str, Tail] = {}

    def show_last(self, count: int) -> None:
        """The last lines of each; what comes later is new."""
        for name, tail in self._open():
            lines = tail.lines()
            self._print(name, lines[max(0, len(lines) - count) :])

    def show_new(self) -> None:
        """What has been written since the last look."""
        for name, tail in self._open():
            self._print(name, tail.lines())

    def _open(self) -> "Iterable[tuple[str, Tail]]":
        for name, file in log_files(self._home).items():
            if self._name in {None, name}:
                yield name, self._tails.setdefault(name, Tail(file))

    def _print(self, name: str, lines: Iterable[str]) -> None:
        before = f"{name:<12} " if self._name is None else ""
        for line in lines:
            sys.stdout.write(f"{before}{harmless(line)}\n")
        sys.stdout.flush()


class Tail:
    """Reads the lines of a file as they come, also when it is put aside and begun anew."""

    def __init__(self, file: Path) -> None:
        """Nothing is read yet."""
        self._file = file
        self._open: BinaryIO | None = None
        self._rest = b""

    def lines(self) -> list[str]:
        """The whole lines since the last call; what was put aside meanwhile comes first."""
        found = self._read()
        if self._moved():
            if self._open is not None:
                self._open.close()
            self._open = self._file.open("rb")
            found += self._read()
        return found

    def _moved(self) -> bool:
        if not self._file.exists():
            return False
        return self._open is None or self._file.stat().st_ino != os.fstat(self._open.fileno()).st_ino

    def _read(self) -> list[str]:
        if self._open is None:
            return []
        *whole, self._rest = (self._rest + self._open.read()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]
