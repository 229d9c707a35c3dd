"""Read: a text file with line numbers."""

import codecs
from typing import Annotated

from pydantic import Field

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import READ
from celeriac.common.tools.base import Described, Restart, ToolContext, ToolInput, ToolResult, describe
from celeriac.workers.tools.encoding import readable
from celeriac.workers.tools.stamps import recall, remember
from celeriac.workers.workspace import FileContent, WorkspaceError, as_workspace

DEFAULT_LINES = 2000
MAX_LINE = 2000
"""Characters of a line that are shown."""
MAX_BYTES = 28_000
"""UTF-8 bytes of one answer; the rest is asked for with `offset`."""


class ReadInput(ToolInput):
    """See read.md."""

    file_path: str
    offset: Annotated[int, Field(ge=1, description="Number of the first line to show, from 1")] = 1
    limit: Annotated[int, Field(ge=1, description="How many lines to show at most")] = DEFAULT_LINES


class Read(Described[ReadInput]):
    """Shows a file and remembers what it held."""

    wire_name = READ
    input = ReadInput
    description = describe(__file__)
    restart = Restart.RERUN
    timeout_s = 30.0

    def read_only(self, i: ReadInput) -> bool:
        """Always."""
        return True

    def recall(self, meta: JsonObject, memory: dict[str, Value]) -> None:
        """The file's stamp."""
        recall(meta, memory)

    async def run(self, i: ReadInput, ctx: ToolContext) -> ToolResult:
        """Read it."""
        try:
            content = await as_workspace(ctx.workspace).read(i.file_path)
        except WorkspaceError as error:
            return ToolResult.error(str(error))
        text = readable(content.data)
        if text is None:
            return ToolResult.error(f"{i.file_path} is a binary file of {len(content.data)} bytes")
        remember(ctx, content.stamp)
        return _show(text, i, content)


def _show(text: str, i: ReadInput, content: FileContent) -> ToolResult:
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines:
        return ToolResult("(the file is empty)", meta=content.stamp)
    if i.offset > len(lines):
        return ToolResult.error(f"the file has {len(lines)} lines; offset {i.offset} is beyond its end")
    shown = _fitting(lines, i.offset, i.limit)
    after = i.offset + len(shown)
    notes = (
        [f"[lines {i.offset} to {after - 1} of {len(lines)}; go on with offset {after}]"] if after <= len(lines) else []
    )
    if not _is_utf8(content.data):
        notes.append("[the file is not UTF-8: unreadable bytes are shown as \ufffd]")
    return ToolResult("\n".join([*shown, *notes]), meta=content.stamp)


def _fitting(lines: list[str], offset: int, limit: int) -> list[str]:
    """The numbered lines that fit into MAX_BYTES, at least one."""
    shown: list[str] = []
    room = MAX_BYTES
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], start=offset):
        numbered = f"{number:6d}\t{_cut(line.removesuffix(chr(13)))}"
        room -= len(numbered.encode()) + 1
        if room < 0 and shown:
            break
        shown.append(numbered)
    return shown


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} [… {len(line) - MAX_LINE} more characters]"


def _is_utf8(data: bytes) -> bool:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True  # decoded whole
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
