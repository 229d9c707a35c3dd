"""Opening files below a folder and nowhere else, by descriptor (SECURITY, Files). Synchronous; knows no workspace, no
tool.

`openat2` with RESOLVE_BENEATH decides in the kernel. Where it is missing, and for absolute links that lead back
inside (which the kernel refuses), a walk opens one component after the other with O_NOFOLLOW and resolves links
itself. Neither can be tricked by a folder that is swapped for a link meanwhile.
"""

import ctypes
import errno
import os
import stat
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_OPENAT2 = 437
"""The number of openat2 on every architecture (Linux 5.6)."""
_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08
_MAX_LINKS = 40
"""As the kernel: more links than this are a loop."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_LIBC = ctypes.CDLL(None, use_errno=True)


def _openat2(folder: int, path: str, flags: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    code = errno.EAGAIN
    for _ in range(_MAX_LINKS):  # EAGAIN: the kernel saw a rename somewhere during the walk
        fd: int = _LIBC.syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in {errno.EAGAIN, errno.EINTR}:
            break
    raise OSError(code, os.strerror(code), path)


def has_openat2(folder: int) -> bool:
    """Whether this kernel (and its filter of system calls) has it: tried, not guessed."""
    try:
        os.close(_openat2(folder, ".", os.O_PATH))
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name is: an open folder, the last component, and the path from the root with all links resolved."""

    folder: int
    name: str
    path: str


class _Walk:
    """One resolution of a path, a component at a time; holds the open folders from the root down."""

    def __init__(self, root: int, root_paths: tuple[str, ...], *, create: bool) -> None:
        self.root_paths, self.create = root_paths, create
        self.folders = [os.dup(root)]
        self.names: list[str] = []
        self.links = 0

    def close(self) -> None:
        for fd in self.folders:
            os.close(fd)

    def to(self, path: str) -> Place:
        """Resolve everything, also a link in the last place; the last component itself need not exist."""
        todo = deque(_split(path))
        while todo:
            part = todo.popleft()
            if part == "..":
                self.up(path)
            elif (target := self.link(part)) is not None:
                todo.extendleft(reversed(self.follow(target, path)))
            elif todo:
                self.down(part)
            else:
                return Place(self.folders[-1], part, "/".join([*self.names, part]))
        return Place(self.folders[-1], ".", "/".join(self.names) or ".")

    def up(self, path: str) -> None:
        if not self.names:
            raise OSError(errno.EXDEV, "leads out of the workspace", path)
        os.close(self.folders.pop())
        self.names.pop()

    def link(self, part: str) -> str | None:
        try:
            return os.readlink(part, dir_fd=self.folders[-1])
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOENT}:  # no link; nothing there
                return None
            raise

    def follow(self, target: str, path: str) -> list[str]:
        self.links += 1
        if self.links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if not target.startswith("/"):
            return _split(target)
        inside = below(self.root_paths, target)
        if inside is None:
            raise OSError(errno.EXDEV, "a link on the way leads out of the workspace", path)
        while self.names:
            self.up(path)
        return _split(inside)

    def down(self, part: str) -> None:
        try:
            fd = os.open(part, _FOLDER, dir_fd=self.folders[-1])
        except FileNotFoundError:
            if not self.create:
                raise
            os.mkdir(part, dir_fd=self.folders[-1])
            fd = os.open(part, _FOLDER, dir_fd=self.folders[-1])
        self.folders.append(fd)
        self.names.append(part)


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def below(root_paths: tuple[str, ...], path: str) -> str | None:
    """`path` from the root on, if it begins with one of the root's spellings; the rest may still lead out."""
    for root in root_paths:
        if path == root:
            return "."
        prefix = root.rstrip("/") + "/"
        if path.startswith(prefix):
            return path[len(prefix) :].lstrip("/") or "."
    return None


class Confined:
    """A folder that nothing opened through here is outside of."""

    def __init__(self, root: str, root_paths: tuple[str, ...], *, openat2: bool | None = None) -> None:
        """Open the folder. `openat2` False forces the walk (for tests); None probes. Raises OSError."""
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._root_paths = root_paths
        self.close = weakref.finalize(self, os.close, self._root)  # at the latest when nobody uses it any more
        self.openat2 = has_openat2(self._root) if openat2 is None else openat2

    @contextmanager
    def locate(self, path: str, *, create_parents: bool = False) -> Iterator[Place]:
        """The place of a path (relative to the root), links resolved. Raises OSError; EXDEV = it leads out."""
        walk = _Walk(self._root, self._root_paths, create=create_parents)
        try:
            yield walk.to(path)
        finally:
            walk.close()

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Open what is there, without waiting for a FIFO's other end. Raises OSError; EXDEV = it leads out."""
        if not flags & os.O_PATH:  # which openat2 refuses together with these
            flags |= os.O_NONBLOCK | os.O_NOCTTY
        if self.openat2:
            try:
                return _openat2(self._root, path, flags)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        with self.locate(path) as place:
            return os.open(place.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)

    def open_file(self, path: str) -> int:
        """Open a regular file for reading. Raises OSError, IsADirectoryError."""
        fd = self.open(path)
        try:
            require_regular(os.fstat(fd), path)
        except OSError:
            os.close(fd)
            raise
        return fd

    def open_folder(self, path: str) -> int:
        """Open a folder for listing."""
        return self.open(path, os.O_RDONLY | os.O_DIRECTORY)


_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular(status: os.stat_result, path: str) -> None:
    """Refuse everything that is no regular file. Raises IsADirectoryError, OSError (EINVAL)."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", path)
    for test, kind in _KINDS:
        if test(status.st_mode):
            raise OSError(errno.EINVAL, f"is {kind}, not a regular file", path)
