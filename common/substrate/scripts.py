"""Lua scripts, composed at load time from the files in lua/. Knows files and text; nothing of Redis.

A script's first line may name the shared pieces it stands on: `-- uses: base events`. They go before it in that order.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from celeriac.common.contract.errors import ScriptRefused

FOLDER = Path(__file__).parent / "lua"
_USES = "-- uses:"


@dataclass(frozen=True, slots=True)
class Script:
    """One composed script and its SHA1, by which Redis knows it."""

    name: str
    text: str
    sha: str


class ScriptLibrary:
    """All scripts by name."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files`: path below the folder without suffix (`claim`, `lib/base`) → text."""
        self._files = dict(files)
        self._scripts = {name: self._compose(name) for name in files if "/" not in name}

    @classmethod
    def load(cls, folder: Path = FOLDER) -> "ScriptLibrary":
        """Read a folder of .lua files."""
        return cls(_read(folder))

    @classmethod
    def mutated(cls, *edits: tuple[str, str, str]) -> "ScriptLibrary":
        """For tests of the tests: the packaged scripts with each (file, old, new) applied. Raises ScriptRefused if an
        `old` does not stand in its file exactly once, so that an edit never silently does nothing."""
        files = _read(FOLDER)
        for name, old, new in edits:
            if files[name].count(old) != 1:
                raise ScriptRefused(f"{name}.lua does not hold exactly one {old!r}")
            files[name] = files[name].replace(old, new)
        return cls(files)

    def __getitem__(self, name: str) -> Script:
        return self._scripts[name]

    def names(self) -> tuple[str, ...]:
        """Names of all scripts."""
        return tuple(self._scripts)

    def _compose(self, name: str) -> Script:
        text = self._files[name]
        first = text.partition("\n")[0]
        pieces = first.removeprefix(_USES).split() if first.startswith(_USES) else []
        whole = "\n".join([*(self._files[f"lib/{piece}"] for piece in pieces), text])
        return Script(name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


def _read(folder: Path) -> dict[str, str]:
    paths = sorted(folder.rglob("*.lua"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path.read_text("utf-8") for path in paths}


@cache
def packaged() -> ScriptLibrary:
    """The scripts that ship, read once."""
    return ScriptLibrary.load()
