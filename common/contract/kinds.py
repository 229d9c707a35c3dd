"""The six forms of a task (SPEC 2)."""

from enum import StrEnum


class Kind(StrEnum):
    """A form; the value is the prefix of its ids and the name of its queue."""

    SESSION = "s"
    AGENT = "a"
    REMOTE = "r"
    SHELL = "sh"
    TEAMMATE = "t"
    DREAM = "d"


TITLES = {
    Kind.SESSION: "session",
    Kind.AGENT: "agent",
    Kind.REMOTE: "remote",
    Kind.SHELL: "shell",
    Kind.TEAMMATE: "teammate",
    Kind.DREAM: "dream",
}
"""How people are shown each form."""

SERVED = frozenset({Kind.AGENT, Kind.SHELL})
"""Forms that workers of this version run; dispatching another one is answered at once."""
