"""Listing the files below an open folder, without ever following a link to a folder. Synchronous."""

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_ENTRIES = 200_000
MAX_SECONDS = 20.0
MAX_DEPTH = 64
"""Bounds of one walk; a tree that is larger is listed in part, and the answer says so. Each level holds a descriptor
open."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Walker:
    """One walk."""

    skip: frozenset[str]
    """Names of folders that are not entered."""
    link_is_file: Callable[[str], bool]
    """Whether a link, by its path from the top, leads to a regular file that may be seen."""
    files: list[str] = field(default_factory=list)
    """Paths of regular files from the top."""
    complete: bool = True
    _seen: int = 0
    _until: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def enter(self, folder: int, prefix: str = "", depth: int = 0) -> None:
        """List everything below an open folder. Raises OSError if that folder itself cannot be listed."""
        if depth > MAX_DEPTH:
            self.complete = False
            return
        with os.scandir(folder) as entries:
            listed = list(entries)
        for entry in listed:
            if self._spent():
                return
            self._take(folder, entry, prefix, depth)

    def _spent(self) -> bool:
        self._seen += 1
        spent = self._seen > MAX_ENTRIES or time.monotonic() > self._until
        self.complete = self.complete and not spent
        return spent

    def _take(self, folder: int, entry: "os.DirEntry[str]", prefix: str, depth: int) -> None:
        path = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in self.skip:
                self._descend(folder, entry.name, f"{path}/", depth)
        elif entry.is_file(follow_symlinks=False) or (entry.is_symlink() and self.link_is_file(path)):
            self.files.append(path)

    def _descend(self, folder: int, name: str, prefix: str, depth: int) -> None:
        try:
            fd = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:  # removed, swapped for a link or closed to us meanwhile
            return
        try:
            self.enter(fd, prefix, depth + 1)
        finally:
            os.close(fd)


def is_file(fd: int) -> bool:
    """Whether an open descriptor is a regular file."""
    return stat.S_ISREG(os.fstat(fd).st_mode)
