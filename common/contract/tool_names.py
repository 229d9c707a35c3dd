"""The table of tool names (SPEC 6): the names that models know, and the sources' names that settings may use."""

from celeriac.common.contract.kinds import Kind

AGENT_TOOL = "AgentTool"
SEND_MESSAGE = "SendMessage"
TASK_STOP = "TaskStop"
SYNTHETIC_OUTPUT = "SyntheticOutput"
READ = "Read"
EDIT = "Edit"
WRITE = "Write"
GREP = "Grep"
GLOB = "Glob"
BASH = "Bash"
TODO_WRITE = "TodoWrite"

COORDINATOR_MODE_ALLOWED = frozenset({AGENT_TOOL, SEND_MESSAGE, TASK_STOP, SYNTHETIC_OUTPUT})
ASYNC_AGENT_ALLOWED = frozenset(
    {
        READ, EDIT, WRITE, "NotebookEdit", GREP, GLOB, BASH, "WebSearch", "WebFetch", TODO_WRITE,
        "Skill", SYNTHETIC_OUTPUT, "ToolSearch", "EnterWorktree", "ExitWorktree",
    }
)  # fmt: skip
TEAMMATE_ALLOWED = ASYNC_AGENT_ALLOWED | {"TaskCreate", "TaskGet", "TaskList", "TaskUpdate", SEND_MESSAGE}
WORKER_DISALLOWED = frozenset({AGENT_TOOL, "TaskOutput", TASK_STOP})

ALIASES = {"FileRead": READ, "FileEdit": EDIT, "FileWrite": WRITE, "Shell": BASH}
"""Names of the source documents, accepted in settings and rules."""


def wire_name(name: str) -> str:
    """The name that models know for a name used in settings."""
    return ALIASES.get(name, name)


def allowed_for(kind: Kind) -> frozenset[str]:
    """The closed set of a form; a shell has no tools."""
    sets = {
        Kind.SESSION: COORDINATOR_MODE_ALLOWED,
        Kind.AGENT: ASYNC_AGENT_ALLOWED,
        Kind.REMOTE: ASYNC_AGENT_ALLOWED,
        Kind.TEAMMATE: TEAMMATE_ALLOWED,
        Kind.DREAM: frozenset({READ, GREP, GLOB}),
        Kind.SHELL: frozenset[str](),
    }
    return sets[kind]
