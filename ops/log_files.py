"""Log files of the processes of `up`: HOME/logs/NAME.log, and NAME.log.1 for what was before."""

from contextlib import suppress
from pathlib import Path

from celeriac.coordinator.commands.logs import LOGS_FOLDER, log_files
from celeriac.ops.folders import private

MAX_BYTES = 10_000_000
"""Of one file; with the one before it that is at most 20 MB a process."""

_TAIL_BYTES = 4000
"""Enough for one line."""


class LogFile:
    """Takes the lines of one process, over all its starts."""

    def __init__(self, file: Path) -> None:
        """Nothing is opened before the first line."""
        self._file = file
        self._bytes = 0

    def write(self, line: str) -> None:
        """Append a line. A full disk costs lines of the log, never the process."""
        data = (line + "\n").encode(errors="replace")
        if self._bytes and self._bytes + len(data) > MAX_BYTES:
            with suppress(OSError):
                put_aside(self._file)
            self._bytes = 0
        with suppress(OSError), self._file.open("ab") as out:
            out.write(data)
        self._bytes += len(data)


def new_logs(home: Path) -> Path:
    """The folder for the logs of one start; each file of the start before becomes NAME.log.1. Raises OSError."""
    folder = private(home / LOGS_FOLDER)
    for file in log_files(home).values():
        put_aside(file)
    return folder


def put_aside(file: Path) -> None:
    """It becomes FILE.1, in place of an older one."""
    file.replace(file.with_name(f"{file.name}.1"))


def last_line_of(file: Path) -> str:
    """What a log ends with; empty if there is none."""
    with suppress(OSError), file.open("rb") as data:
        data.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        lines = data.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
