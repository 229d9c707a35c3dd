"""Checks of this machine: the home folder and its disk, terminals for commands."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from celeriac.ops.doctor.check import Check, fail, ok, warn

ENOUGH_BYTES = 1 << 30
"""Below this a busy server's append-only file may fill the disk within a day."""
TOO_FEW_BYTES = 100 << 20
"""Below this a rewrite of the append-only file may not fit."""
FORGETFUL = frozenset({"tmpfs", "ramfs"})
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})
"""Locks and fsync are not what they are on a disk."""
MOUNTS = Path("/proc/self/mountinfo")


def terminal() -> Iterator[Check]:
    """Commands run in a pseudo-terminal."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        yield fail("pty", f"none can be opened ({error.strerror})", "mount devpts at /dev/pts (workers need it for sh)")
        return
    os.close(master)
    os.close(slave)
    yield ok("pty", "can be opened")


def home(folder: Path) -> Iterator[Check]:
    """Settings, logs and the data of `up` are written there."""
    there = nearest(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=there):
            pass
    except OSError as error:
        yield fail("home", f"{folder} cannot be written ({error.strerror})", "change its owner, or set CELERIAC_HOME")
        return
    yield ok("home", str(folder) if there == folder else f"{folder} (will be made)")


def disk(folder: Path) -> Iterator[Check]:
    """Its disk keeps things, and has room."""
    there = nearest(folder)
    free = shutil.disk_usage(there).free
    room = f"{free / (1 << 30):.1f} GiB free"
    kind = filesystem(there, MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
    if free < TOO_FEW_BYTES:
        yield fail("disk", f"{room} at {there}", "make room, or set CELERIAC_HOME")
    elif free < ENOUGH_BYTES:
        yield warn("disk", f"{room} at {there}", "make room: the server appends to its file")
    elif kind in FORGETFUL:
        yield warn("disk", f"{there} is a {kind}, gone with the machine", "set CELERIAC_HOME to a folder on a disk")
    elif kind in REMOTE:
        yield warn(
            "disk", f"{there} is a {kind} mount", "set CELERIAC_HOME to a local disk: `up` needs locks and fsync"
        )
    else:
        yield ok("disk", f"{room} ({kind})")


def nearest(folder: Path) -> Path:
    """The folder, or what is there of the path to it."""
    return next(one for one in (folder, *folder.parents) if one.is_dir())


def filesystem(folder: Path, mountinfo: str) -> str:
    """The kind of file system that holds `folder`, by proc(5)'s mountinfo; the longest and latest mount wins."""
    best, kind = -1, "unknown"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount = Path(before.split()[4].replace("\\040", " "))
        if folder.resolve().is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), after.split()[0]
    return kind
