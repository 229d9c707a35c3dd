"""Write: a whole file."""

from typing import Annotated

from pydantic import Field

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import WRITE
from celeriac.common.tools.base import Described, ToolContext, ToolInput, ToolResult, describe
from celeriac.workers.tools.stamps import recall, remember, remembered
from celeriac.workers.workspace import WorkspaceError, as_workspace


class WriteInput(ToolInput):
    """See write.md."""

    file_path: str
    content: Annotated[str, Field(description="The whole new content")]


class Write(Described[WriteInput]):
    """Writes a new file, or replaces one that was read before."""

    wire_name = WRITE
    input = WriteInput
    description = describe(__file__)
    timeout_s = 30.0

    def recall(self, meta: JsonObject, memory: dict[str, Value]) -> None:
        """The file's stamp."""
        recall(meta, memory)

    async def run(self, i: WriteInput, ctx: ToolContext) -> ToolResult:
        """Write it."""
        try:
            data = i.content.encode()
            return await _write(i, data, ctx)
        except UnicodeEncodeError:
            return ToolResult.error("the content holds half of a surrogate pair, which no file can hold")
        except WorkspaceError as error:
            return ToolResult.error(str(error))


async def _write(i: WriteInput, data: bytes, ctx: ToolContext) -> ToolResult:
    workspace = as_workspace(ctx.workspace)
    path, exists = await workspace.canonical(i.file_path)
    known = remembered(ctx, path) if exists else None
    stamp = await workspace.write(i.file_path, data, expected=known)
    remember(ctx, stamp)
    return ToolResult(f"{i.file_path}: {'replaced' if exists else 'created'}, {len(data)} bytes", meta=stamp)
