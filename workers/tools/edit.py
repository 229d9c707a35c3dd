"""Edit: replace a piece of text in a file."""

from typing import Annotated

from pydantic import Field

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import EDIT
from celeriac.common.tools.base import Described, ToolContext, ToolInput, ToolResult, describe
from celeriac.workers.tools.replacing import NotReplaced, replace
from celeriac.workers.tools.stamps import recall, remember, remembered
from celeriac.workers.workspace import WorkspaceError, as_workspace


class EditInput(ToolInput):
    """See edit.md."""

    file_path: str
    old_string: Annotated[str, Field(min_length=1, description="The text to replace, exactly as the file has it")]
    new_string: Annotated[str, Field(description="The text to put in its place")]
    replace_all: Annotated[bool, Field(description="Replace every occurrence")] = False


class Edit(Described[EditInput]):
    """Changes a file that was read before."""

    wire_name = EDIT
    input = EditInput
    description = describe(__file__)
    timeout_s = 30.0

    def recall(self, meta: JsonObject, memory: dict[str, Value]) -> None:
        """The file's stamp."""
        recall(meta, memory)

    async def run(self, i: EditInput, ctx: ToolContext) -> ToolResult:
        """Replace it."""
        if i.old_string == i.new_string:
            return ToolResult.error("old_string and new_string are the same; nothing was changed")
        try:
            return await _edit(i, ctx)
        except UnicodeEncodeError:
            return ToolResult.error("the text holds half of a surrogate pair, which no file can hold")
        except (WorkspaceError, NotReplaced) as error:
            return ToolResult.error(str(error))


async def _edit(i: EditInput, ctx: ToolContext) -> ToolResult:
    workspace = as_workspace(ctx.workspace)
    content = await workspace.read(i.file_path)
    known = remembered(ctx, content.stamp.path)
    if known is None:
        return ToolResult.error(f"{i.file_path} was not read in this run; read it before you edit it")
    if known != content.stamp:
        return ToolResult.error(f"{i.file_path} has changed since it was read; read it again")
    (i.old_string + i.new_string).encode()
    replaced = replace(content.data, i.old_string, i.new_string, everywhere=i.replace_all)
    stamp = await workspace.write(i.file_path, replaced.data, expected=content.stamp)
    remember(ctx, stamp)
    places = "1 place" if replaced.count == 1 else f"{replaced.count} places"
    return ToolResult(f"{i.file_path}: replaced in {places}", meta=stamp)
