"""Running ripgrep over one folder and reading its answer, bounded (CASES C67, C79, C91)."""

import asyncio
import base64
import os
import shutil
import sysconfig
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.policy.file_names import show
from celeriac.workers.workspace import SearchRoot

MAX_LINE = 500
"""Characters of a found line that are shown."""
_RECORD_ROOM = 1 << 20
"""Bytes of one record; a longer one (a match in a huge line) is skipped."""
_ERROR_ROOM = 2000
_NO_MATCH = 1


class RipgrepFailed(CeleriacError):
    """The search could not be made; the text is ripgrep's, for the model."""


@dataclass(slots=True)
class Found:
    """Lines of the answer."""

    lines: list[str] = field(default_factory=list)
    more: bool = False


def program() -> str:
    """The ripgrep that was installed with this package, else one on PATH. Raises RipgrepFailed."""
    own = Path(sysconfig.get_path("scripts")) / "rg"
    found = str(own) if own.is_file() else shutil.which("rg")
    if found is None:
        raise RipgrepFailed("ripgrep (rg) is not installed on this worker")
    return found


async def search(root: SearchRoot, arguments: list[str], *, mode: str, limit: int, numbers: bool) -> Found:
    """Run it in the opened folder. Raises RipgrepFailed."""
    process = await asyncio.create_subprocess_exec(
        program(),
        *("--no-config", "--color=never", "--no-follow", "--sort=path", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=f"/proc/self/fd/{root.folder}",  # the folder that was opened, whatever its name leads to by now
        env={"LC_ALL": "C.UTF-8"},
        limit=_RECORD_ROOM,
    )
    assert process.stdout is not None and process.stderr is not None
    errors = asyncio.create_task(_read_bounded(process.stderr), name=f"errors of ripgrep {process.pid}")
    try:
        found = await _collect(process.stdout, root.shown, mode=mode, limit=limit, numbers=numbers)
        if not found.more and await process.wait() > _NO_MATCH and not found.lines:
            raise RipgrepFailed((await errors).strip() or "the search failed")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await errors
    return found


async def _read_bounded(stream: asyncio.StreamReader) -> str:
    kept = b""
    while chunk := await stream.read(_ERROR_ROOM):
        kept = (kept + chunk)[:_ERROR_ROOM]
    return kept.decode(errors="replace")


Reader = Callable[[asyncio.StreamReader, str], AsyncGenerator[str, None]]
"""Makes lines of what one mode of ripgrep writes; the text is the path of the searched folder."""


async def _collect(stream: asyncio.StreamReader, prefix: str, *, mode: str, limit: int, numbers: bool) -> Found:
    found = Found()
    readers: dict[str, Reader] = {
        "files_with_matches": _paths,
        "count": _counts,
        "content": partial(_contents, numbers=numbers),
    }
    answers = readers[mode](stream, prefix)
    async with aclosing(answers):
        async for line in answers:
            if len(found.lines) == limit:
                found.more = True
                break
            found.lines.append(line)
    return found


async def _paths(stream: asyncio.StreamReader, prefix: str) -> AsyncGenerator[str, None]:
    async for path in _records(stream, b"\0"):
        yield _shown(prefix, os.fsdecode(path))


async def _counts(stream: asyncio.StreamReader, prefix: str) -> AsyncGenerator[str, None]:
    """Records are `path NUL count LF`; cut at NUL, a piece holds the count of the path before it and the next path."""
    path: str | None = None
    async for piece in _records(stream, b"\0"):
        count, _, following = piece.partition(b"\n") if path is not None else (b"", b"", piece)
        if path is not None:
            yield f"{path}:{count.decode()}"
        path = _shown(prefix, os.fsdecode(following))


async def _contents(stream: asyncio.StreamReader, prefix: str, *, numbers: bool) -> AsyncGenerator[str, None]:
    async for record in _records(stream, b"\n"):
        event: JsonObject = orjson.loads(record)
        data = event["data"]
        assert isinstance(data, dict)
        if event["type"] not in {"match", "context"}:
            continue
        mark = ":" if event["type"] == "match" else "-"
        path = _shown(prefix, os.fsdecode(_bytes(data["path"])))
        text = _bytes(data["lines"]).decode(errors="replace").removesuffix("\n")
        first = data["line_number"] if isinstance(data["line_number"], int) else 1
        for number, line in enumerate(text.split("\n"), start=first):
            yield f"{path}{mark}{f'{number}{mark}' if numbers else ''}{_cut(line.removesuffix(chr(13)))}"


def _bytes(value: JsonValue) -> bytes:
    """ripgrep's way to write bytes: as text if they are UTF-8, else in base64."""
    assert isinstance(value, dict)
    return str(value["text"]).encode() if "text" in value else base64.b64decode(str(value["bytes"]))


def _shown(prefix: str, path: str) -> str:
    return show("/".join(part for part in (prefix, path.removeprefix("./")) if part))


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} [… {len(line) - MAX_LINE} more characters]"


async def _records(stream: asyncio.StreamReader, end: bytes) -> AsyncGenerator[bytes, None]:
    """Records; one that is too long for memory is left out."""
    skipping = False
    while True:
        try:
            record = await stream.readuntil(end)
        except asyncio.IncompleteReadError as error:
            if error.partial and not skipping:
                yield error.partial
            return
        except asyncio.LimitOverrunError as error:
            await stream.readexactly(error.consumed)
            skipping = True
            continue
        if not skipping:
            yield record[:-1]
        skipping = False
