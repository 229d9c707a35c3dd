"""`up.json` and the lock beside it: at most one `celeriac up` in a home, and every shell finds it."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from celeriac.common.contract.errors import CeleriacError
from celeriac.coordinator.servers import RUN_FILE, birth_of, live_up
from celeriac.ops.folders import not_writable, private

LOCK_FILE = "up.lock"
"""Held by the kernel as long as its owner lives; the file stays, since removing it would let two in."""
_PID_BYTES = 20


class AlreadyRuns(CeleriacError):
    """Another `celeriac up` has this home."""


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Be the one `up` of this home. Raises AlreadyRuns, which says where the other is, and UsageError."""
    try:
        lock = os.open(private(home) / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise not_writable(home, error) from error
    try:
        _take(lock, home)
        with suppress(OSError):  # what a dead one left counts for nobody
            (home / RUN_FILE).unlink()
        yield
    finally:
        os.close(lock)


def _take(lock: int, home: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        raise AlreadyRuns(_where(lock, home)) from error
    except OSError as error:
        raise not_writable(home / LOCK_FILE, error) from error


def _where(lock: int, home: Path) -> str:
    up = live_up(home)
    if up is not None:
        return (
            f"one runs already in {home}: pid {up.pid}, server {up.url}; use it, "
            f"or end it with Ctrl-C in its terminal or `kill {up.pid}`"
        )
    pid = os.pread(lock, _PID_BYTES, 0).decode(errors="replace") or "unknown"
    return f"another one is starting or ending just now in {home} (pid {pid}); wait for it, or set CELERIAC_HOME"


@contextmanager
def announced(home: Path, url: str, *, flower: str | None) -> Iterator[None]:
    """Let other shells find the server at `url` for the life of the block. Raises UsageError."""
    pid = os.getpid()
    document = {"url": url, "pid": pid, "started": round(time.time(), 3), "birth": birth_of(pid), "flower": flower}
    file = home / RUN_FILE
    try:
        _replace(file, json.dumps(document) + "\n")
    except OSError as error:
        raise not_writable(file, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()


def _replace(file: Path, text: str) -> None:
    """Readers see the old file or the new one, never a part."""
    new = file.with_name(f"{file.name}.new")  # one name, so that a kill here leaves nothing that grows in number
    new.touch(mode=0o600)
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError:
        new.unlink()
        raise
