"""The tools of a worker: one module and one description file each."""

from collections.abc import Mapping

from celeriac.common.tools.base import AnyTool
from celeriac.workers.shell.commands import Commands
from celeriac.workers.tools.bash import Bash
from celeriac.workers.tools.edit import Edit
from celeriac.workers.tools.glob import Glob
from celeriac.workers.tools.grep import Grep
from celeriac.workers.tools.read import Read
from celeriac.workers.tools.todo_write import TodoWrite
from celeriac.workers.tools.write import Write


def worker_tools(commands: Commands, environment: Mapping[str, str]) -> tuple[AnyTool, ...]:
    """The tools that work on a workspace, in the order in which a model sees them. `environment` is that of
    commands."""
    return (Read(), Edit(), Write(), Glob(), Grep(), Bash(commands, environment), TodoWrite())
