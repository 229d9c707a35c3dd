"""What a run has read, so that it never overwrites what it has not seen (in `ctx.state` under "Read")."""

from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import READ
from celeriac.common.tools.base import ToolContext
from celeriac.workers.workspace import FileStamp


class ReadStamps(Value):
    """Path (links resolved) → stamp of what was last read or written there."""

    files: dict[str, FileStamp] = {}


def remember(ctx: ToolContext, stamp: FileStamp) -> None:
    """The run knows this content now. No await inside: reads that run together must not lose each other's stamps."""
    ctx.state[READ] = ReadStamps(files={**_stamps(ctx).files, stamp.path: stamp})


def remembered(ctx: ToolContext, path: str) -> FileStamp | None:
    """What the run knows of this file."""
    return _stamps(ctx).files.get(path)


def _stamps(ctx: ToolContext) -> ReadStamps:
    found = ctx.state.get(READ)
    return found if isinstance(found, ReadStamps) else ReadStamps()
