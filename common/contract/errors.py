"""Every error of this system, under one root. The docstring is the meaning; attributes are what a caller branches
on."""


class CeleriacError(Exception):
    """Anything that this system raises on purpose."""

    exit_code = 1
    """Exit code of the command line when this error ends it (INTERFACES, Command line)."""


class UsageError(CeleriacError):
    """The user's input is wrong; the text says what, where and what to do."""

    exit_code = 2


class BadId(UsageError):
    """A text that is no task id: whatever it means, no such task exists."""

    exit_code = 5

    def __init__(self, text: str) -> None:
        """Keep the offending `text`."""
        super().__init__(
            f"{text!r} is not a task id (expected a prefix of s, a, r, sh, t, d, a dash and 13 or 26 characters)"
        )
        self.text = text


class BadReplay(UsageError):
    """A replay file that cannot be used; `line` counts from 1."""

    def __init__(self, source: str, line: int, why: str) -> None:
        """Name the file, the line and the reason."""
        super().__init__(f"replay file {source}, line {line}: {why}")
        self.line = line


class BadSettings(UsageError):
    """A settings file or variable that cannot be used."""


class NotFound(CeleriacError):
    """No such task."""

    exit_code = 5

    def __init__(self, what: str) -> None:
        """Name what was looked for."""
        super().__init__(f"{what} is not known here; `celeriac list` shows the sessions of this server")


class ServerUnreachable(CeleriacError):
    """Redis (or another service) does not answer."""

    exit_code = 4


class ClientClosed(CeleriacError):
    """The client was closed, so that this call has no answer; what it asked for may have been done."""


class JobFailed(CeleriacError):
    """A job did not succeed: it failed, was stopped, or met a limit."""

    def __init__(self, task_id: str, why: str, exit_code: int) -> None:
        """`why`: state and reason; `exit_code`: what the command line ends with for such a job."""
        super().__init__(f"{task_id} {why}")
        self.task_id = task_id
        self.exit_code = exit_code


class Refused(CeleriacError):
    """The substrate refused a request for the reason given; nothing was changed."""

    def __init__(self, reason: str) -> None:
        """Keep the `reason`."""
        super().__init__(reason)
        self.reason = reason


class IllegalTransition(CeleriacError):
    """A state change that the lifecycle does not know (SPEC 2)."""


class LeaseLost(CeleriacError):
    """The caller no longer owns the task: it must cancel itself and write nothing more (PROTOCOL 3)."""


class BadNotification(CeleriacError):
    """A text that is not one task notification."""


class ScriptRefused(CeleriacError):
    """A Lua script was called with arguments it cannot accept: a defect of the caller."""
