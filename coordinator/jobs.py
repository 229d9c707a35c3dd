"""What a client says about a job before it exists, and what it gets when it has ended. Pure values."""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from celeriac.common.contract.errors import JobFailed, UsageError
from celeriac.common.contract.ids import TaskId, new_session, session_for, session_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import (
    Denial,
    Limits,
    Mode,
    Outcome,
    Record,
    SessionSpec,
    State,
    Subtype,
    Times,
    Usage,
    Value,
    Workspace,
)
from celeriac.common.contract.text import is_text
from celeriac.common.contract.workspaces import workspace_label
from celeriac.common.llm.script import Script, parse_script
from celeriac.common.settings import Settings
from celeriac.common.substrate.types import NewTask

TENANT = "default"
"""Until tenants exist there is one (PROTOCOL 1)."""
TITLE_CHARS = 72
"""A title stands in one line of a list."""
QUESTION = "question"
"""Reason of a job that asked a question where nobody could answer (SPEC 3)."""


class JobOptions(Value):
    """How a job is to be run. What is not given comes from the replay's `job` object, then from the settings."""

    cwd: Path | None = None
    """The workspace; None: the current folder."""
    model: str | None = None
    mode: Mode | None = None
    allowed_tools: tuple[str, ...] = ()
    """Allow rules, such as `Bash(pytest -q)`."""
    max_turns: Annotated[int, Field(ge=1)] | None = None
    """Tool-use turns of the session."""
    limits: Limits | None = None
    idempotency_key: str | None = None
    """Submitting twice with one key finds the first job."""
    replay: str | None = None
    """The text of a replay file: the model's answers come from it."""
    replay_source: str = "replay"
    """What to call that file in errors."""
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked job: nothing of it exists yet."""

    task: NewTask
    script: Script | None
    replay: str | None


def prepare(prompt: str | None, options: JobOptions, settings: Settings) -> Submission:
    """Check everything that can be checked without a server. Raises UsageError (or BadReplay, which is one)."""
    script = None if options.replay is None else parse_script(options.replay, options.replay_source)
    job = None if script is None else script.header.job
    text = _checked_prompt(prompt if prompt is not None else (job.prompt if job else None), settings)
    _check_words(options)
    key = options.idempotency_key
    return Submission(
        task=NewTask(
            task_id=new_session() if key is None else session_for(TENANT, key),
            kind=Kind.SESSION,
            parent=None,
            path="s",
            title=options.title or title_of(text),
            spec=SessionSpec(prompt=text, model=options.model or _model(settings)),
            mode=options.mode or (job.mode if job else None) or settings.permissions.mode,
            tools=options.allowed_tools or (tuple(job.allowed_tools) if job else ()),
            limits=_limits(options, job.limits if job else None, settings),
            workspace=_workspace(options.cwd),
        ),
        script=script,
        replay=options.replay,
    )


def _checked_prompt(prompt: str | None, settings: Settings) -> str:
    if prompt is None or not prompt.strip():
        raise UsageError("the prompt is empty; say what is to be done, or pipe it in")
    require_text("the prompt", prompt)
    size = len(prompt.encode())
    if size > settings.limits.prompt_bytes:
        raise UsageError(
            f"the prompt has {size} bytes, more than the {settings.limits.prompt_bytes} of limits.prompt_bytes; "
            "put long material into a file of the workspace and name it"
        )
    return prompt


def _check_words(options: JobOptions) -> None:
    require_text("the title", options.title or "")
    require_text("the model's name", options.model or "")
    require_text("an allow rule", *options.allowed_tools)
    require_text("the idempotency key", options.idempotency_key or "")


def require_text(what: str, *texts: str) -> None:
    """Raises UsageError for what no encoder accepts, such as an argument whose bytes were not UTF-8 (C31)."""
    if not all(map(is_text, texts)):
        raise UsageError(f"{what} is not valid UTF-8; correct its encoding")


def title_of(prompt: str) -> str:
    """The first line of the prompt, shortened."""
    line = " ".join(prompt.strip().splitlines()[0].split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1] + "…"


def _model(settings: Settings) -> str | None:
    """The model that somebody chose; None leaves it to the coordinator's settings."""
    return settings.llm.model if "model" in settings.llm.model_fields_set else None


def _limits(options: JobOptions, scripted: Limits | None, settings: Settings) -> Limits:
    limits = options.limits or scripted or Limits()
    if limits.usd is not None:
        raise UsageError("a limit in US dollars cannot be kept yet, since nothing is priced; leave `usd` out")
    turns = options.max_turns or limits.turns or settings.limits.session_turns
    return limits.model_copy(update={"turns": turns})


def _workspace(cwd: Path | None) -> Workspace:
    root = (cwd or Path()).absolute()
    if not root.exists():
        raise UsageError(f"the workspace {root} does not exist; create it or name another with --cwd")
    if not root.is_dir():
        raise UsageError(f"the workspace {root} is not a folder; name one with --cwd")
    resolved = str(root.resolve())
    require_text("the name of the workspace", resolved)
    return Workspace(root=resolved, label=workspace_label(socket.gethostname(), resolved))


class TaskSummary(Value):
    """One line of a job's tree."""

    task_id: TaskId
    kind: Kind
    title: str
    state: State
    runs: int
    usage: Usage
    times: Times = Times()
    """Of the current run."""
    duration_ms: int


class JobResult(Value):
    """How a job (or one of its tasks) ended, with the usage of its whole tree."""

    task_id: TaskId
    session_id: TaskId
    state: State
    subtype: Subtype
    result: str | None = None
    """The final answer; for anything but success what there was of it."""
    structured_output: JsonObject | None = None
    reason: str = ""
    limited: bool = False
    """Cut by a limit: turns, money or time."""
    num_turns: int = 0
    duration_ms: int = 0
    usage: Usage = Usage()
    permission_denials: tuple[Denial, ...] = ()
    stop_reason: str | None = None
    tasks: tuple[TaskSummary, ...] = ()
    question: str | None = None
    """What it asked last, if it ended because nobody could answer."""
    replay_unused: tuple[str, ...] = ()
    """Lines of its replay file that answered nothing."""
    event_id: str = ""
    """The last event that whoever followed it has seen: what comes in a later run is behind it."""

    @property
    def still_open(self) -> tuple[TaskId, ...]:
        """Tasks of the tree that have not ended."""
        return tuple(task.task_id for task in self.tasks if not task.state.terminal)

    @property
    def is_error(self) -> bool:
        """True unless the job succeeded and nothing of it is left running."""
        return self.exit_code != 0

    @property
    def exit_code(self) -> int:
        """INTERFACES, Command line: 0 success and nothing left running, 1 failed, 3 a limit, 6 stopped."""
        if self.state is State.STOPPED:
            return 6
        if self.limited:
            return 3
        succeeded = self.state is State.COMPLETED and not self.still_open and not self.replay_unused
        return 0 if succeeded else 1

    def raise_for_state(self) -> Self:
        """This result, if the job succeeded and nothing of it is left running. Raises JobFailed."""
        if self.is_error:
            why = self.reason or self.subtype.value
            raise JobFailed(self.task_id, f"is {self.state.value}, not a success: {why}", self.exit_code)
        return self

    def document(self) -> JsonObject:
        """The `result` line that tools around coding agents read. `total_cost_usd` is null: nothing is priced yet.

        Only success carries `result`; what there was of an answer else is `partial_result` (SPEC 5)."""
        unknown = set() if self.event_id else {"event_id"}
        document: JsonObject = json.loads(self.model_dump_json(exclude={"limited", "usage", "tasks", *unknown}))
        subtype = Subtype.EXECUTION if self.is_error and self.subtype is Subtype.SUCCESS else self.subtype
        texts: JsonObject = {"result": None, "partial_result": self.result} if self.is_error else {}
        return {
            "type": "result",
            **document,
            **texts,
            "subtype": subtype.value,
            "is_error": self.is_error,
            "total_cost_usd": None,
            "usage": json.loads(self.usage.model_dump_json()),
            "tasks": [json.loads(task.model_dump_json()) for task in self.tasks],
        }


_LIMIT_SUBTYPES = frozenset({Subtype.MAX_TURNS, Subtype.MAX_BUDGET})


def result_of(record: Record, tree: tuple[Record, ...]) -> JobResult:
    """Read an ended record. `tree` holds the records of its session."""
    outcome = record.outcome or Outcome(state=record.state, subtype=Subtype.EXECUTION, reason="no outcome is stored")
    members = tuple(task for task in tree if record.parent is None or task.task_id == record.task_id)
    stopped_by_limit = record.stop is not None and record.stop.kind == "limit" and record.stop.reason != QUESTION
    failed = outcome.state is State.FAILED
    return JobResult(
        task_id=record.task_id,
        session_id=session_of(record.task_id),
        state=outcome.state,
        subtype=outcome.subtype,
        result=outcome.text,
        structured_output=outcome.structured,
        reason=outcome.reason,
        limited=failed and (stopped_by_limit or outcome.subtype in _LIMIT_SUBTYPES),
        num_turns=outcome.usage.turns,
        duration_ms=outcome.duration_ms,
        usage=total_usage(members),
        permission_denials=outcome.denials,
        stop_reason=outcome.stop_reason,
        tasks=tuple(summary_of(task) for task in members),
    )


def total_usage(tasks: tuple[Record, ...]) -> Usage:
    """The sum over records."""
    total = Usage()
    for task in tasks:
        total = total.plus(task.usage)
    return total


def summary_of(record: Record) -> TaskSummary:
    """The line of a record."""
    times = record.times
    return TaskSummary(
        task_id=record.task_id,
        kind=record.kind,
        title=record.title,
        state=record.state,
        runs=record.run,
        usage=record.usage,
        times=times,
        duration_ms=max(0, (times.ended or record.read_at) - times.created),
    )
