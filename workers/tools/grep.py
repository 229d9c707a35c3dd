"""Grep: search file contents with ripgrep."""

import os
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from celeriac.common.contract.tool_names import GREP
from celeriac.common.tools.base import Described, Restart, ToolContext, ToolInput, ToolResult, describe
from celeriac.workers.tools.ripgrep import Found, RipgrepFailed, search
from celeriac.workers.workspace import SearchRoot, WorkspaceError, as_workspace

DEFAULT_RESULTS = 250
_MAX_CONTEXT = 50

Mode = Literal["files_with_matches", "content", "count"]
Context = Annotated[int | None, Field(ge=0, le=_MAX_CONTEXT)]


class GrepInput(ToolInput):
    """See grep.md."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    pattern: Annotated[str, Field(min_length=1, max_length=10_000, description="A regular expression")]
    path: Annotated[str, Field(description="A file or folder; the workspace if left out")] = "."
    glob: Annotated[str | None, Field(description="Only files whose path matches, such as *.py")] = None
    output_mode: Mode = "files_with_matches"
    ignore_case: Annotated[bool, Field(alias="-i", description="Ignore case")] = False
    line_numbers: Annotated[bool, Field(alias="-n", description="Show line numbers (content)")] = True
    after: Annotated[Context, Field(alias="-A", description="Lines after each match (content)")] = None
    before: Annotated[Context, Field(alias="-B", description="Lines before each match (content)")] = None
    around: Annotated[Context, Field(alias="-C", description="Lines around each match (content)")] = None
    head_limit: Annotated[int, Field(ge=1, le=10_000, description="How many lines of the answer at most")] = (
        DEFAULT_RESULTS
    )
    multiline: Annotated[bool, Field(description="Let the pattern span lines")] = False


class Grep(Described[GrepInput]):
    """Searches files."""

    wire_name = GREP
    input = GrepInput
    description = describe(__file__)
    restart = Restart.RERUN
    timeout_s = 60.0

    def read_only(self, i: GrepInput) -> bool:
        """Always."""
        return True

    async def run(self, i: GrepInput, ctx: ToolContext) -> ToolResult:
        """Search."""
        if "\0" in i.pattern + (i.glob or ""):
            return ToolResult.error("a pattern cannot hold a NUL character; write \\x00")
        try:
            root = await as_workspace(ctx.workspace).search_root(i.path)
        except WorkspaceError as error:
            return ToolResult.error(str(error))
        try:
            found = await search(
                root, arguments(i, root), mode=i.output_mode, limit=i.head_limit, numbers=i.line_numbers
            )
        except RipgrepFailed as error:
            return ToolResult.error(str(error))
        except UnicodeEncodeError:
            return ToolResult.error("the pattern holds half of a surrogate pair")
        finally:
            os.close(root.folder)
        return ToolResult(_text(found, i))


def arguments(i: GrepInput, root: SearchRoot) -> list[str]:
    """The options of ripgrep; nothing of the model's can become one (CASES C67)."""
    options = ["--hidden", "--glob=!.git", "--no-require-git", "--no-ignore-parent", "--no-ignore-global"]
    options += {"files_with_matches": ["-l", "-0"], "count": ["-c", "-0", "-H"], "content": ["--json"]}[i.output_mode]
    options += ["-i"] if i.ignore_case else []
    options += ["-U", "--multiline-dotall"] if i.multiline else []
    options += [f"--glob={i.glob}"] if i.glob else []
    if i.output_mode == "content":
        context = (("-A", i.after), ("-B", i.before), ("-C", i.around))
        options += [f"{flag}{lines}" for flag, lines in context if lines is not None]
    target = root.target if root.target == "." else f"./{root.target}"  # a plain `-` would be standard input
    return [*options, "-e", i.pattern, "--", target]


def _text(found: Found, i: GrepInput) -> str:
    if not found.lines:
        return "no match"
    note = [f"[more than {i.head_limit} lines; narrow the search or raise head_limit]"] if found.more else []
    return "\n".join([*found.lines, *note])
