"""Arguments and answers of the substrate's operations (PROTOCOL 3). Pure values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft
from celeriac.common.contract.task import Limits, Mode, Spec, State, Stop, Value, Workspace


class NewTask(Value):
    """Everything that `create` writes; its digest tells a repeated create from a different one."""

    task_id: TaskId
    kind: Kind
    parent: TaskId | None
    path: str
    title: str
    spec: Spec
    mode: Mode
    tools: tuple[str, ...] = ()
    limits: Limits = Limits()
    workspace: Workspace | None = None
    labels: tuple[str, ...] = ()


class Created(StrEnum):
    """Answer of create."""

    CREATED = "CREATED"
    EXISTS = "EXISTS"
    MISMATCH = "MISMATCH"
    STOPPING = "STOPPING"


StopKind = Literal["user", "limit"]
"""Who stops: a person or coordinator, or a limit of the task."""


@dataclass(frozen=True, slots=True)
class Resend:
    """A wake-up that a supervisor shall send: its run, and how many of that run went before."""

    run: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Wake:
    """A wake-up that the caller shall send through the queue: this task was parked or reopened by what it did."""

    task_id: TaskId
    run: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RunRef:
    """One run of one task."""

    task_id: TaskId
    run: int


class ClaimRefusal(StrEnum):
    """Why a claim got nothing: drop the message."""

    NOREC = "NOREC"
    DONE = "DONE"
    STALE = "STALE"
    BUSY = "BUSY"
    STOPPED = "STOPPED"
    PARKED = "PARKED"
    POISON = "POISON"


@dataclass(frozen=True, slots=True)
class Grant:
    """A successful claim."""

    task_id: TaskId
    token: str
    """`fence/nonce`."""
    run: int
    tlen: int
    draft: Draft | None
    sent_at: float
    """CLOCK_BOOTTIME, seconds, when the claim was sent: the owner may act for 2/3 of the lease from then."""
    asked: bool = False
    """A SyntheticOutput question waits for its answer: with nothing unread, park before any model call."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer to an owner's write."""

    stop: Stop | None
    """Set when the run is effectively stopped: drain, then finish."""
    unread: int
    """Messages and notifications waiting (information entries do not count)."""
    open_children: int
    tlen: int


class FinishStatus(StrEnum):
    """Answer of finish."""

    OK = "OK"
    STOPPED = "STOPPED"
    INBOX = "INBOX"
    CHILDREN = "CHILDREN"
    ALREADY = "ALREADY"


@dataclass(frozen=True, slots=True)
class Finish:
    """Answer of finish; `open_tasks` is filled for CHILDREN."""

    status: FinishStatus
    open_tasks: tuple[TaskId, ...] = ()
    wake: Wake | None = None
    """The parent's wake-up, if it was parked for its inbox and is no session (sessions get a hint by themselves)."""


class ParkStatus(StrEnum):
    """Answer of park. LOST raises LeaseLost. ANSWERED: what it would wait for has arrived; ask again to get it."""

    OK = "OK"
    STOP = "STOP"
    INBOX = "INBOX"
    ANSWERED = "ANSWERED"


Timeout = Literal["timeout"]
TIMEOUT: Timeout = "timeout"
"""The answer that a question gets when its deadline is over."""
StoredAnswer = JsonObject | Timeout
"""What answers a question, written once: somebody's answer, or TIMEOUT."""


class AskStatus(StrEnum):
    """Answer of ask. LOST raises LeaseLost."""

    OK = "OK"
    """Asked now."""
    STORED = "STORED"
    """Asked before: see what is stored."""
    STOP = "STOP"
    """Not asked, since the run is stopped."""


@dataclass(frozen=True, slots=True)
class AskResult:
    """Answer of ask."""

    status: AskStatus
    answer: StoredAnswer | None = None
    """None: not answered yet, so park for it until the deadline."""
    deadline_ms: int = 0
    """Server time: that of the first ask; 0 for STOP."""


class AnswerStatus(StrEnum):
    """Answer of answer."""

    OK = "OK"
    FIRST = "FIRST"
    """Another answer, or its deadline, was first."""
    ENDED = "ENDED"
    """The run that asked has ended, or is stopped."""
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer of answer."""

    status: AnswerStatus
    stored: StoredAnswer | None = None
    """What answers the question now, for OK and FIRST."""
    wake: Wake | None = None
    """The wake-up to send, if the task was parked for this and is no session (sessions get a hint by themselves)."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question that waits for its answer; times are the server's, in epoch milliseconds."""

    qid: str
    task_id: TaskId
    run: int
    body: JsonObject
    deadline_ms: int
    asked_at: int


class SendStatus(StrEnum):
    """Answer of send_message."""

    QUEUED = "QUEUED"
    REOPENED = "REOPENED"
    REFUSED = "REFUSED"
    RELIST = "RELIST"


@dataclass(frozen=True, slots=True)
class Sent:
    """Answer of send_message: which run gets it, or why not."""

    status: SendStatus
    run: int = 0
    reason: str = ""
    wake: Wake | None = None
    """The wake-up to send, if the target was parked or ended and is no session (sessions get a hint by themselves)."""


class StopStatus(StrEnum):
    """Answer of request_stop."""

    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    REQUESTED = "REQUESTED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class StopAnswer:
    """Answer of request_stop; `state` is set for FINISHED."""

    status: StopStatus
    state: State | None = None
    run: int = 0
    """The run that it was about; a repeated request is still about that one."""


class EntryKind(StrEnum):
    """What an inbox entry is; LOST and BACK are information entries: they wake nothing."""

    NOTIFICATION = "n"
    MESSAGE = "m"
    LOST = "l"
    BACK = "b"


@dataclass(frozen=True, slots=True)
class Entry:
    """One unread inbox entry."""

    id: str
    kind: EntryKind
    text: str
    """A notification's XML (rendered when the entry was built from the record), or the message's text."""
    sender: str = ""
    """Task id or `user` for a message; the task for a notification."""


class MarkState(StrEnum):
    """State of a state-changing call in `c:{S}:tools:T`."""

    STARTED = "started"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Mark:
    """A start mark or a kept outcome."""

    state: MarkState
    result: bytes = b""
    """JSON of the tool_result block, for DONE."""
