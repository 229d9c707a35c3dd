"""One tool call through the middleware list (INTERFACES, Tools). The order is the list in `Invoke.__init__`.

What shapes a result (limit, post hooks, bounds) lies inside the journal, so that a new owner finds just what the
model would have seen.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pydantic import BaseModel, ValidationError

from celeriac.common.contract.errors import CeleriacError, LeaseLost, ServerUnreachable
from celeriac.common.contract.task import Denial
from celeriac.common.policy.decide import (
    Allow,
    Approvals,
    Deny,
    NullApprovals,
    Permissions,
    Policy,
    Question,
    Subject,
)
from celeriac.common.policy.hooks import NOTHING, HookEvent, HookName, HookOutcome, Hooks
from celeriac.common.tools.base import AnyTool, Call, ToolContext, ToolResult
from celeriac.common.tools.bounds import bounded
from celeriac.common.tools.toolbox import Toolbox

MAX_TEXT = 100_000
"""Bytes of any result, also of one that no tool made (a refusal that repeats its input)."""

MAX_REASON = 2_000
"""Bytes of a reason (of a refusal, of a run's end), which is kept on the record."""

log = logging.getLogger(__name__)


class Journal(Protocol):
    """Told of state-changing calls, before and after (INTERFACES, Effects and crashes)."""

    async def started(self, call: Call, ctx: ToolContext) -> None:
        """Make the start durable. Raising keeps the call from starting."""
        ...

    async def done(self, call: Call, result: ToolResult, ctx: ToolContext) -> None:
        """Make the outcome durable."""
        ...


class NullJournal:
    """Keeps nothing."""

    async def started(self, call: Call, ctx: ToolContext) -> None:
        """Nothing to keep."""

    async def done(self, call: Call, result: ToolResult, ctx: ToolContext) -> None:
        """Nothing to keep."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call on its way through the list."""

    call: Call
    ctx: ToolContext
    tool: AnyTool | None = None
    input: BaseModel | None = None

    @property
    def known(self) -> AnyTool:
        """The tool, after `known_tool`."""
        assert self.tool is not None
        return self.tool

    @property
    def read_only(self) -> bool:
        """Whether the call changes nothing."""
        return self.known.read_only(self.input)


Next = Callable[[Pending], Awaitable[ToolResult]]
Middleware = Callable[[Pending, Next], Awaitable[ToolResult]]


class Invoke:
    """Runs calls; a failure is data for the model. Raises LeaseLost and ServerUnreachable only: then what the call did
    is not known here, and its next owner finds out."""

    def __init__(
        self,
        *,
        toolbox: Toolbox,
        permissions: Permissions,
        policy: Policy,
        hooks: Hooks,
        journal: Journal,
        denials: list[Denial],
        approvals: Approvals | None = None,
    ) -> None:
        """`denials` collects what was refused; without `approvals` nobody is there to ask."""
        self._toolbox = toolbox
        self._permissions = permissions
        self._policy = policy
        self._hooks = hooks
        self._journal = journal
        self._denials = denials
        self._approvals = approvals or NullApprovals()
        self._chain = _fold(
            [
                self._known_tool,
                self._validate,
                self._pre_hooks,
                self._permission,
                self._journalled,  # keeps the outcome as the model will see it, so what shapes it lies inside
                self._bound_output,
                self._post_hooks,
                self._limit,
            ],
            self._run,
        )

    async def __call__(self, call: Call, ctx: ToolContext) -> ToolResult:
        """The call's result, always with a text."""
        try:
            result = await self._chain(Pending(call, ctx))
        except (LeaseLost, ServerUnreachable):
            raise
        except Exception as error:  # a border: what is around a tool failed (a rule, a hook, the journal)
            log.exception("%s %s failed around the tool", call.name, call.id)
            result = ToolResult.error(f"{call.name} failed: {type(error).__name__}: {error}")
        return replace(result, text=bounded(result.text, MAX_TEXT))

    def read_only(self, call: Call) -> bool:
        """Whether the call changes nothing; one that cannot run only yields an error, so it does."""
        tool = self._toolbox.find(call.name)
        if tool is None:
            return True
        try:
            return tool.read_only(tool.input.model_validate(call.raw))
        except ValidationError:
            return True
        except Exception:  # a border: what cannot be judged is run alone, and its failure told to the model
            log.exception("%s %s cannot be judged", call.name, call.id)
            return False

    async def _known_tool(self, pending: Pending, call_next: Next) -> ToolResult:
        tool = self._toolbox.find(pending.call.name)
        if tool is None:
            known = ", ".join(self._toolbox.names)
            return self._denied(pending.call, f"there is no tool {pending.call.name}; you have: {known}")
        return await call_next(replace(pending, tool=tool))

    async def _validate(self, pending: Pending, call_next: Next) -> ToolResult:
        try:
            validated = pending.known.input.model_validate(pending.call.raw)
        except ValidationError as error:
            return ToolResult.error(explain(pending.call.name, error))
        return await call_next(replace(pending, input=validated))

    async def _pre_hooks(self, pending: Pending, call_next: Next) -> ToolResult:
        call = pending.call
        event = HookEvent(HookName.PRE_TOOL_USE, pending.ctx.task_id, call.name, call.raw, call.id)
        outcome = await self._trigger(event)
        if outcome.block is not None:
            return self._denied(call, outcome.block)
        if outcome.rewrite is None:
            return await call_next(pending)
        rewritten = replace(pending, call=replace(call, raw=outcome.rewrite))
        return await self._validate(rewritten, call_next)

    async def _trigger(self, event: HookEvent) -> HookOutcome:
        """A failing hook is reported and never takes the call down (SPEC 5)."""
        try:
            return await self._hooks.trigger(event)
        except Exception:
            log.exception("hooks of %s failed", event.name)
            return NOTHING

    async def _permission(self, pending: Pending, call_next: Next) -> ToolResult:
        """The last of the hooks before a tool: it judges the input after all rewrites."""
        subject = Subject(
            tool=pending.call.name,
            input=pending.call.raw,
            read_only=pending.read_only,
            workspace=pending.ctx.workspace.root if pending.ctx.workspace is not None else None,
        )
        decision = self._permissions.decide(subject, self._policy)
        if isinstance(decision, Allow):
            return await call_next(pending)
        if isinstance(decision, Deny):
            return self._denied(pending.call, decision.reason)
        question = Question(pending.ctx.task_id, pending.call.id, pending.call.name, decision.question)
        answer = await self._approvals.ask(question)
        return (
            await call_next(pending) if answer.allowed else self._denied(pending.call, f"{question.text}: {answer.by}")
        )

    async def _journalled(self, pending: Pending, call_next: Next) -> ToolResult:
        if pending.read_only:
            return await call_next(pending)
        try:
            await self._journal.started(pending.call, pending.ctx)
        except (LeaseLost, ServerUnreachable):
            raise
        except CeleriacError as error:
            return ToolResult.error(str(error))
        result = await call_next(pending)
        await self._journal.done(pending.call, result, pending.ctx)
        return result

    async def _limit(self, pending: Pending, call_next: Next) -> ToolResult:
        seconds = pending.known.timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await call_next(pending)
        except TimeoutError:
            return ToolResult.error(f"{pending.call.name} timed out after {seconds:g} s")

    @staticmethod
    async def _run(pending: Pending) -> ToolResult:
        """A border: whatever a tool raises is a failed call, told to the model and logged."""
        try:
            return await pending.known.run(pending.input, pending.ctx)
        except (LeaseLost, ServerUnreachable):
            raise
        except Exception as error:
            log.exception("%s %s failed", pending.call.name, pending.call.id)
            return ToolResult.error(f"{pending.call.name} failed: {type(error).__name__}: {error}")

    async def _post_hooks(self, pending: Pending, call_next: Next) -> ToolResult:
        result = await call_next(pending)
        event = HookEvent(
            HookName.POST_TOOL_USE,
            pending.ctx.task_id,
            pending.call.name,
            pending.call.raw,
            pending.call.id,
            output=result.text,
        )
        outcome = await self._trigger(event)
        return replace(result, text="\n".join([result.text, *outcome.context])) if outcome.context else result

    @staticmethod
    async def _bound_output(pending: Pending, call_next: Next) -> ToolResult:
        result = await call_next(pending)
        text = bounded(result.text, pending.known.max_chars)
        return replace(result, text=text if text.strip() else "(no output)")

    def _denied(self, call: Call, reason: str) -> ToolResult:
        reason = bounded(reason, MAX_REASON)
        self._denials.append(Denial(tool_name=call.name, tool_use_id=call.id, reason=reason))
        return ToolResult.error(f"denied: {reason}")


def _fold(middlewares: Sequence[Middleware], run: Next) -> Next:
    """Wrap `run`, the last of the list innermost."""

    def wrap(middleware: Middleware, inner: Next) -> Next:
        return lambda pending: middleware(pending, inner)

    for middleware in reversed(middlewares):
        run = wrap(middleware, run)
    return run


def explain(name: str, error: ValidationError) -> str:
    """One line for the model: which fields, what is wrong."""
    parts = [f"{'.'.join(str(at) for at in item['loc']) or 'input'}: {item['msg']}" for item in error.errors()]
    return f"{name}: {'; '.join(parts)}"
