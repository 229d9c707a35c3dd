"""The coordinator's four tools (SPEC 3). Each is idempotent by the id of its tool_use, so a takeover may run it
again."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Literal

import orjson
from pydantic import Field

from celeriac.common.contract import ids
from celeriac.common.contract.errors import BadId, Refused
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import SERVED, TITLES, Kind
from celeriac.common.contract.task import AgentSpec, Limits, Mode, Record, ShellSpec, State, narrower
from celeriac.common.contract.tool_names import AGENT_TOOL, BASH, SEND_MESSAGE, TASK_STOP
from celeriac.common.policy.decide import Allow, Permissions, Policy, Subject
from celeriac.common.runtime.synthetic_output import SyntheticOutput
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import NewTask, SendStatus, StopStatus
from celeriac.common.tools.base import Described, Restart, ToolContext, ToolInput, ToolResult
from celeriac.common.tools.toolbox import Toolbox
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.prompt import text
from celeriac.coordinator.stopping import UNSEEN

STOP_WAIT_SECONDS = 10.0
"""How long TaskStop waits for descendants to end before it answers `not confirmed`."""
STOP_LOOK_SECONDS = 0.1

LATER = {"effort", "isolation", "requires", "team", "name", "subagent_type"}
"""Inputs of SPEC 3 that this version cannot honour: refused by name, never ignored."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the tools act for."""

    record: Record
    lease: Lease
    policy: Policy
    permissions: Permissions
    dispatcher: Dispatcher

    def path(self, ctx: ToolContext) -> str:
        """The path of what this call dispatches (INTERFACES, Records)."""
        turn = f"{ctx.turn}" if ctx.run == 1 else f"{ctx.run}:{ctx.turn}"
        return f"{self.record.path}/{turn}.{ctx.block}"

    def own(self, text_id: str) -> TaskId:
        """A task of this session. Raises Refused."""
        try:
            task_id = ids.parse(text_id)
        except BadId as error:
            raise Refused(str(error)) from error
        if ids.session_of(task_id) != self.record.task_id or task_id == self.record.task_id:
            raise Refused(f"{task_id} is not a task of this session")
        return task_id


class AgentToolInput(ToolInput):
    """SPEC 3, AgentTool."""

    description: Annotated[str, Field(min_length=1, max_length=200)]
    prompt: str = ""
    kind: Literal["a", "r", "sh", "t", "d"] = "a"
    command: str | None = None
    subagent_type: str | None = None
    model: str | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    mode: Mode | None = None
    max_turns: Annotated[int, Field(ge=1)] | None = None
    isolation: str | None = None
    requires: list[str] | None = None
    team: str | None = None
    name: str | None = None


class AgentTool(Described[AgentToolInput]):
    """Dispatches a task."""

    wire_name = AGENT_TOOL
    input = AgentToolInput
    description = text("agent_tool")
    restart = Restart.RERUN

    def __init__(self, session: Session) -> None:
        """For one session."""
        self._session = session

    async def run(self, i: AgentToolInput, ctx: ToolContext) -> ToolResult:
        """Answer `{task_id, state}` at once, or an error that says why nothing was started."""
        if refusal := self._refusal(i):
            return ToolResult.error(refusal)
        task = self._task(i, ctx)
        try:
            record = await self._session.dispatcher.dispatch(task, parent_token=self._session.lease.token)
        except Refused as error:
            return ToolResult.error(str(error))
        return ToolResult(orjson.dumps({"task_id": record.task_id, "state": record.state.value}).decode())

    def _refusal(self, i: AgentToolInput) -> str | None:
        kind = Kind(i.kind)
        if kind not in SERVED:
            return f"no worker serves this kind: {kind.value} ({TITLES[kind]})"
        if asked := sorted(name for name in LATER if getattr(i, name) is not None):
            return f"not available in this version: {', '.join(asked)}; call again without"
        if kind is Kind.SHELL:
            return self._refused_command(i.command or "")
        return None if i.prompt.strip() else "prompt: an agent needs one; it sees nothing else"

    def _refused_command(self, command: str) -> str | None:
        """A command is judged as a Bash call under the task's mode (SPEC 2)."""
        if not command.strip():
            return "command: a shell task needs one"
        subject = Subject(BASH, {"command": command}, read_only=False)
        decision = self._session.permissions.decide(subject, self._session.policy)
        if isinstance(decision, Allow):
            return None
        why = getattr(decision, "reason", None) or "nobody is there to allow it"
        return f"command denied: {why}"

    def _task(self, i: AgentToolInput, ctx: ToolContext) -> NewTask:
        parent = self._session.record
        kind = Kind(i.kind)
        spec = (
            ShellSpec(command=i.command or "", description=i.description)
            if kind is Kind.SHELL
            else AgentSpec(prompt=i.prompt, description=i.description, model=i.model or _model_of(parent))
        )
        return NewTask(
            task_id=ids.child(parent.task_id, kind, ctx.call_id),
            kind=kind,
            parent=parent.task_id,
            path=self._session.path(ctx),
            title=i.description,
            spec=spec,
            mode=narrower(i.mode or parent.mode, parent.mode),
            tools=parent.tools,
            limits=Limits(turns=i.max_turns, seconds=parent.limits.seconds),
            workspace=parent.workspace,
            labels=parent.labels,
        )


def _model_of(parent: Record) -> str | None:
    """Workers use the session's model unless told otherwise."""
    return None if isinstance(parent.spec, ShellSpec) else parent.spec.model


class SendMessageInput(ToolInput):
    """SPEC 3, SendMessage."""

    to: str
    message: Annotated[str, Field(min_length=1)]


class SendMessage(Described[SendMessageInput]):
    """Sends text to a task of the session."""

    wire_name = SEND_MESSAGE
    input = SendMessageInput
    description = text("send_message")
    restart = Restart.RERUN

    def __init__(self, session: Session) -> None:
        """For one session."""
        self._session = session

    async def run(self, i: SendMessageInput, ctx: ToolContext) -> ToolResult:
        """Say which run gets it."""
        session = self._session
        if not i.message.strip():
            return ToolResult.error("message: it says nothing")
        try:
            to = session.own(i.to)
        except Refused as error:
            return ToolResult.error(str(error))
        op = ids.operation(session.record.task_id, ctx.call_id)
        sender = (session.record.task_id, session.lease.token)
        sent = await session.dispatcher.send_message(to, i.message, op=op, sender=sender)
        if sent.status is SendStatus.REFUSED:
            return ToolResult.error(f"not sent: {sent.reason}")
        state = "reopened" if sent.status is SendStatus.REOPENED else "delivered"
        return ToolResult(orjson.dumps({"task_id": to, "state": state, "run": sent.run}).decode())


class TaskStopInput(ToolInput):
    """SPEC 3, TaskStop."""

    task_id: str
    reason: Annotated[str, Field(max_length=500)] = "stopped by the coordinator"


class TaskStop(Described[TaskStopInput]):
    """Stops a task and everything below it."""

    wire_name = TASK_STOP
    input = TaskStopInput
    description = text("task_stop")
    restart = Restart.RERUN

    def __init__(self, session: Session) -> None:
        """For one session."""
        self._session = session

    async def run(self, i: TaskStopInput, ctx: ToolContext) -> ToolResult:
        """One line for each task: stopped, already finished, not confirmed."""
        session = self._session
        try:
            task_id = session.own(i.task_id)
        except Refused as error:
            return ToolResult.error(str(error))
        records = session.dispatcher.substrate.records
        below = await records.descendants(task_id)
        op = ids.operation(session.record.task_id, ctx.call_id)
        sender = (session.record.task_id, session.lease.token)
        answer = await records.request_stop(task_id, kind="user", reason=i.reason, op=op, sender=sender)
        if answer.status is StopStatus.UNKNOWN:
            return ToolResult.error(f"{task_id} is not known")
        first = f"already finished ({answer.state})" if answer.status is StopStatus.FINISHED else None
        async with asyncio.TaskGroup() as confirming:  # the bound is for all together
            told = [confirming.create_task(self._confirm(task_id, answer.run))]
            told += [confirming.create_task(self._confirm(each)) for each in below]
        verdicts = [task.result() for task in told]
        verdicts[0] = first or verdicts[0]
        return ToolResult("\n".join(f"{each}: {said}" for each, said in zip((task_id, *below), verdicts, strict=True)))

    async def _confirm(self, task_id: TaskId, run: int | None = None) -> str:
        """Settle the stop of this run (None: of the current one), or wait until the owner has."""
        records = self._session.dispatcher.substrate.records
        record = await records.get(task_id)
        run = run or record.run
        try:
            async with asyncio.timeout(STOP_WAIT_SECONDS):
                while record.run == run and not record.state.terminal:
                    await records.settle_stop(task_id)
                    await asyncio.sleep(STOP_LOOK_SECONDS)
                    record = await records.get(task_id)
        except TimeoutError:
            return "not confirmed"
        if record.run != run:  # opened again since: this stop is not about what runs now
            outcome = await records.outcome(task_id, run)
            return "stopped" if outcome is not None and outcome.state is State.STOPPED else "already finished"
        if record.stop is not None and not record.stop.confirmed:
            return f"not confirmed: {UNSEEN}"
        return "stopped" if record.state is State.STOPPED else "already finished"


def session_toolbox(session: Session) -> Toolbox:
    """Exactly the four."""
    return Toolbox([AgentTool(session), SendMessage(session), TaskStop(session), SyntheticOutput()], kind=Kind.SESSION)
