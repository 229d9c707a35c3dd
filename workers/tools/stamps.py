"""What a run has read, so that it never overwrites what it has not seen (in `ctx.state` under "Read")."""

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import READ
from celeriac.common.tools.base import ToolContext
from celeriac.workers.workspace import FileStamp


class ReadStamps(Value):
    """Path (links resolved) → stamp of what was last read or written there."""

    files: dict[str, FileStamp] = {}


def remember(ctx: ToolContext, stamp: FileStamp) -> None:
    """The run knows this content now. No await inside: reads that run together must not lose each other's stamps."""
    _put(ctx.state, stamp)


def remembered(ctx: ToolContext, path: str) -> FileStamp | None:
    """What the run knows of this file."""
    return _stamps(ctx.state).files.get(path)


def recall(meta: JsonObject, memory: dict[str, Value]) -> None:
    """Take over a stamp that a former owner's Read, Edit or Write kept."""
    _put(memory, FileStamp.model_validate(meta))


def _put(memory: dict[str, Value], stamp: FileStamp) -> None:
    memory[READ] = ReadStamps(files={**_stamps(memory).files, stamp.path: stamp})


def _stamps(memory: dict[str, Value]) -> ReadStamps:
    found = memory.get(READ)
    return found if isinstance(found, ReadStamps) else ReadStamps()
