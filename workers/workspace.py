"""The workspace: the one folder that the tools of a task see, every access confined to it (SECURITY, Files).

Above: the file tools. Below: `confined`. Blocking work runs in threads. Paths are texts in the form of `names`; a
relative one starts at the root, an absolute one must begin with the root. Every failure is a WorkspaceError whose
text a model understands.
"""

import asyncio
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from celeriac.common.contract.errors import CeleriacError, UsageError
from celeriac.common.contract.task import Value
from celeriac.common.policy import file_names as names
from celeriac.workers.confined import Confined, Place, below, require_regular
from celeriac.workers.walking import Walker, is_file

MAX_FILE_BYTES = 50 * 1024 * 1024
"""Largest file that is read whole: several at once must still fit beside 500 agents (DESIGN 4)."""
_CHUNK = 1 << 20
_SHOWN = 500
"""Characters of a path that an error repeats."""

P = ParamSpec("P")
T = TypeVar("T")


class WorkspaceError(CeleriacError):
    """A file operation that was refused or failed; the text says what and why, for the model."""


class FileStamp(Value):
    """What a file held when it was read: enough to tell whether it has changed since."""

    path: str
    """From the root, links resolved."""
    size: int
    sha256: str

    @classmethod
    def of(cls, path: str, data: bytes) -> "FileStamp":
        """The stamp of these bytes."""
        return cls(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file as it was read."""

    data: bytes
    stamp: FileStamp


@dataclass(frozen=True, slots=True)
class Walk:
    """The files below a folder, as paths from that folder, sorted."""

    files: tuple[str, ...]
    complete: bool
    """False: a bound was reached first."""


@dataclass(frozen=True, slots=True)
class SearchRoot:
    """Where another program shall search: its working folder as an open descriptor, and what to name there."""

    folder: int
    target: str
    """`.`, or the name of a file."""
    shown: str
    """Path of the folder from the root; empty for the root itself."""


class Workspace:
    """Implements OpenWorkspace."""

    def __init__(self, root: Path, *, openat2: bool | None = None) -> None:
        """Open the folder. Raises UsageError if there is none."""
        given = os.path.normpath(root.absolute())
        self._root = Path(os.path.realpath(given))
        self._spellings = tuple(dict.fromkeys((str(self._root), given)))
        try:
            self._confined = Confined(str(self._root), self._spellings, openat2=openat2)
        except OSError as error:
            raise UsageError(f"workspace {root}: {error.strerror}; give an existing folder") from error

    @property
    def root(self) -> Path:
        """Absolute path, links resolved."""
        return self._root

    @property
    def openat2(self) -> bool:
        """Whether the kernel confines; else the walk does."""
        return self._confined.openat2

    def close(self) -> None:
        """Close the folder; nothing can be opened any more. An unused workspace closes itself."""
        self._confined.close()

    def relative(self, text: str) -> str:
        """The path from the root that `text` names; it may still lead out by `..` or links. Raises WorkspaceError."""
        try:
            path = names.parse(text)
        except ValueError as error:
            raise WorkspaceError(str(error)) from error
        if "\0" in path:
            raise WorkspaceError("a path cannot hold a NUL character")
        if any("\ud800" <= char <= "\udfff" and not "\udc80" <= char <= "\udcff" for char in path):
            raise WorkspaceError("a path cannot hold half of a surrogate pair")
        if not path:
            raise WorkspaceError("the path is empty")
        inside = below(self._spellings, path) if path.startswith("/") else path
        if inside is None:
            raise WorkspaceError(f"{names.show(path)} is outside the workspace {self._root}")
        return inside

    async def read(self, text: str, *, max_bytes: int = MAX_FILE_BYTES) -> FileContent:
        """Read a whole regular file. Raises WorkspaceError."""
        return await self._in_thread(path := self.relative(text), self._read, path, max_bytes)

    async def write(self, text: str, data: bytes, *, expected: FileStamp | None) -> FileStamp:
        """Write a whole file atomically, and its folders. `expected`: what it must still hold; None: it must not exist.

        Raises WorkspaceError.
        """
        return await self._in_thread(path := self.relative(text), self._write, path, data, expected)

    async def canonical(self, text: str) -> tuple[str, bool]:
        """The path with all links resolved, and whether anything is there. Raises WorkspaceError."""
        return await self._in_thread(path := self.relative(text), self._canonical, path)

    async def walk(self, text: str = ".", *, skip: frozenset[str] = frozenset({".git"})) -> Walk:
        """All files below a folder; folders in `skip` and links to folders are not entered. Raises WorkspaceError."""
        return await self._in_thread(path := self.relative(text), self._walk, path, skip)

    async def search_root(self, text: str = ".") -> SearchRoot:
        """Open a folder, or that of a file, for another program; the caller closes `folder`. Raises WorkspaceError."""
        return await self._in_thread(path := self.relative(text), self._search_root, path)

    async def _in_thread(self, path: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        job = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        try:
            return await asyncio.shield(job)
        except OSError as error:
            raise WorkspaceError(_explain(path, error)) from error
        except asyncio.CancelledError:
            await asyncio.wait({job})  # a write must not happen after its call has ended
            raise

    def _read(self, path: str, max_bytes: int) -> FileContent:
        fd = self._confined.open_file(path)
        try:
            data = _read_all(fd, path, max_bytes)
        finally:
            os.close(fd)
        return FileContent(data, FileStamp.of(self._canonical(path)[0], data))

    def _canonical(self, path: str) -> tuple[str, bool]:
        try:
            with self._confined.locate(path) as place:
                return place.path, _status(place) is not None
        except FileNotFoundError:
            return path, False

    def _write(self, path: str, data: bytes, expected: FileStamp | None) -> FileStamp:
        with self._confined.locate(path, create_parents=expected is None) as place:
            mode = self._check(place, expected)
            _replace(place, data, mode)
            return FileStamp.of(place.path, data)

    @staticmethod
    def _check(place: Place, expected: FileStamp | None) -> os.stat_result | None:
        """Whether the file may be replaced; returns what it was."""
        status = _status(place)
        if status is None:
            if expected is not None:
                raise WorkspaceError(f"{names.show(place.path)} was removed since it was read")
            return None
        require_regular(status, place.path)
        if status.st_nlink > 1:
            raise WorkspaceError(
                f"{names.show(place.path)} has {status.st_nlink} hard links: it is a file elsewhere too, perhaps "
                "outside the workspace, so it is not written; copy it and write the copy"
            )
        if expected is None:
            raise WorkspaceError(f"{names.show(place.path)} exists; read it before you write it")
        if not _holds(place, expected):
            raise WorkspaceError(f"{names.show(place.path)} has changed since it was read; read it again")
        return status

    def _walk(self, path: str, skip: frozenset[str]) -> Walk:
        walker = Walker(skip, lambda below_top: self._leads_to_file(f"{path}/{below_top}"))
        top = self._confined.open_folder(path)
        try:
            walker.enter(top)
        finally:
            os.close(top)
        return Walk(tuple(sorted(walker.files)), complete=walker.complete)

    def _leads_to_file(self, path: str) -> bool:
        try:
            fd = self._confined.open(path, os.O_PATH)
        except OSError:
            return False
        try:
            return is_file(fd)
        finally:
            os.close(fd)

    def _search_root(self, path: str) -> SearchRoot:
        with self._confined.locate(path) as place:
            status = _status(place)
            if status is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if stat.S_ISDIR(status.st_mode):
                fd = os.open(
                    place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder
                )
                return SearchRoot(fd, ".", "" if place.path == "." else place.path)
            require_regular(status, path)
            return SearchRoot(os.dup(place.folder), place.name, place.path.rpartition("/")[0])


def as_workspace(workspace: object) -> Workspace:
    """The workspace of a tool context. Raises WorkspaceError: a task without one has no files."""
    if not isinstance(workspace, Workspace):
        raise WorkspaceError("this task has no workspace")
    return workspace


def _status(place: Place) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _read_all(fd: int, path: str, max_bytes: int) -> bytes:
    """To the end of the file; its size may lie or grow, so it is counted."""
    parts: list[bytes] = []
    total = 0
    while chunk := os.read(fd, _CHUNK):
        parts.append(chunk)
        total += len(chunk)
        if total > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes; use Grep or a command for parts of it", path)
    return b"".join(parts)


def _holds(place: Place, expected: FileStamp) -> bool:
    fd = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        require_regular(os.fstat(fd), place.path)
        data = _read_all(fd, place.path, MAX_FILE_BYTES)
    finally:
        os.close(fd)
    return FileStamp.of(expected.path, data) == expected


def _replace(place: Place, data: bytes, old: os.stat_result | None) -> None:
    """Write beside, then rename over: a reader sees the old file or the new one, also after a crash."""
    temporary = f".celeriac-{secrets.token_hex(8)}"
    fd = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=place.folder
    )
    try:
        try:
            _fill(fd, data, old)
        finally:
            os.close(fd)
        os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        os.unlink(temporary, dir_fd=place.folder)
        raise
    _sync_folder(place.folder)


def _fill(fd: int, data: bytes, old: os.stat_result | None) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    if old is not None:
        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
            os.fchown(fd, old.st_uid, old.st_gid)
        os.fchmod(fd, stat.S_IMODE(old.st_mode))
    os.fsync(fd)


def _sync_folder(folder: int) -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)  # O_PATH descriptors cannot be synced
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_WORDS = {
    errno.ENOENT: "does not exist",
    errno.EXDEV: "leads out of the workspace",
    errno.ELOOP: "is a loop of links",
    errno.ENOTDIR: "goes through something that is not a folder",
    errno.EACCES: "may not be accessed",
    errno.ENXIO: "is a socket or a FIFO, not a regular file",
    errno.ENAMETOOLONG: "has too long a name",
}


def _explain(path: str, error: OSError) -> str:
    words = _WORDS.get(error.errno or 0) or error.strerror or "cannot be used"
    return f"{names.show(path[:_SHOWN])} {words}"
