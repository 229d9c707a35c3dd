"""Glob: files by the pattern of their paths."""

from typing import Annotated

from pydantic import Field

from celeriac.common.contract.tool_names import GLOB
from celeriac.common.policy.file_names import show
from celeriac.common.tools.base import Described, Restart, ToolContext, ToolInput, ToolResult, describe
from celeriac.workers.tools.patterns import Pattern
from celeriac.workers.workspace import WorkspaceError, as_workspace

MAX_RESULTS = 500


class GlobInput(ToolInput):
    """See glob.md."""

    pattern: Annotated[str, Field(min_length=1, max_length=1000)]
    path: Annotated[str, Field(description="The folder to search; the workspace if left out")] = "."


class Glob(Described[GlobInput]):
    """Lists files."""

    wire_name = GLOB
    input = GlobInput
    description = describe(__file__)
    restart = Restart.RERUN
    timeout_s = 60.0

    def read_only(self, i: GlobInput) -> bool:
        """Always."""
        return True

    async def run(self, i: GlobInput, ctx: ToolContext) -> ToolResult:
        """List them."""
        try:
            workspace = as_workspace(ctx.workspace)
            text = i.pattern if not i.pattern.startswith("/") else workspace.relative(i.pattern)
            pattern = Pattern(text)
            skip = frozenset[str]() if ".git" in text.split("/") else frozenset({".git"})
            folder = "." if i.pattern.startswith("/") else i.path
            walk = await workspace.walk(folder, skip=skip)
            top = (await workspace.canonical(folder))[0]
        except WorkspaceError as error:
            return ToolResult.error(str(error))
        found = [path for path in walk.files if pattern.matches(path)]
        prefix = "" if top == "." else f"{top}/"
        notes = [] if walk.complete else ["[the folder is too large: only a part of it was searched]"]
        if len(found) > MAX_RESULTS:
            notes.append(f"[{len(found)} files match; the first {MAX_RESULTS} are shown: use a narrower pattern]")
        lines = [show(prefix + path) for path in found[:MAX_RESULTS]]
        return ToolResult("\n".join([*lines, *notes]) or "no file matches")
