"""Runs one claimed, model-driven task: gathers its past, builds the loop's dependencies, drives it to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from celeriac.common.contract.task import Effort, Record
from celeriac.common.lifetime.cleanup import CleanupRegistry
from celeriac.common.llm.catalogue import model_named
from celeriac.common.llm.models import Models
from celeriac.common.policy.decide import Permissions, Policy
from celeriac.common.runtime.deps import Identity, LoopSettings, RunDeps, Sections, Tally
from celeriac.common.runtime.drive import consume, keep
from celeriac.common.runtime.fallback import Switch
from celeriac.common.runtime.holdings import Holdings
from celeriac.common.runtime.loop import Start
from celeriac.common.runtime.output import LiveOutput
from celeriac.common.runtime.pairs import mended
from celeriac.common.runtime.resume import Past, first_line, recall, recount, start_of
from celeriac.common.runtime.state import LoopState, ToolUseContext
from celeriac.common.runtime.turn import api_messages
from celeriac.common.settings import LlmSettings, Settings
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import Entry
from celeriac.common.tools.base import OpenWorkspace
from celeriac.common.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Assignment:
    """What differs between the forms that run a model."""

    prompt: str
    model: str | None
    effort: Effort | None
    fallback_model: str | None
    toolbox: Toolbox
    sections: Sections
    workspace: OpenWorkspace | None = None
    default_turns: int | None = None
    """Limit of tool-use turns when the task has none of its own."""


@dataclass(frozen=True, slots=True)
class TaskInbox:
    """The task's unread entries, read from the substrate."""

    substrate: Substrate
    lease: Lease

    async def unread(self) -> tuple[Entry, ...]:
        """All of them, oldest first."""
        return await self.substrate.inboxes.unread(self.lease.task_id)


@dataclass(frozen=True, slots=True)
class Runner:
    """Shared by all runs of one process."""

    substrate: Substrate
    models: Models
    permissions: Permissions
    settings: Settings
    holdings: Holdings
    process: str

    async def run(self, lease: Lease, record: Record, assign: Callable[[Record], Assignment]) -> None:
        """Run until the task ends, parks or is lost; then its clean-ups have run."""
        output = LiveOutput(lease, record.activities)
        tally = Tally(usage=record.usage, asked=record.asked, tries=record.tries)

        async def work(group: asyncio.TaskGroup) -> None:
            await lease.renew()
            assignment = assign(record)
            deps = await self._deps(lease, record, assignment, output, tally)
            await consume(deps, await begin(self.substrate, lease, deps, assignment.prompt), group)

        with self.holdings.hold(lease):
            await keep(lease, output, work, tally)

    async def _deps(
        self, lease: Lease, record: Record, assignment: Assignment, output: LiveOutput, tally: Tally
    ) -> RunDeps:
        limits = record.limits
        llm = self.settings.llm
        turns = limits.turns if limits.turns is not None else assignment.default_turns
        return RunDeps(
            identity=Identity(
                record.task_id, record.session, record.parent, record.kind, record.path, lease.run, self.process
            ),
            settings=LoopSettings(
                max_tokens=llm.max_tokens,
                retry=llm.retry,
                effort=assignment.effort or llm.effort,
                thinking=llm.thinking,
                limits=limits.model_copy(update={"turns": turns}),
            ),
            model=await self.models.of(record.session),
            toolbox=assignment.toolbox,
            permissions=self.permissions,
            policy=policy_of(record, self.settings),
            writer=lease,
            inbox=TaskInbox(self.substrate, lease),
            output=output,
            sections=assignment.sections,
            cancel=lease.node,
            cleanup=CleanupRegistry(),
            tally=tally,
            switch=_switch(assignment, llm),
            workspace=assignment.workspace,
        )


def _switch(assignment: Assignment, llm: LlmSettings) -> Switch:
    fallback = assignment.fallback_model or llm.fallback_model
    return Switch(
        model_named(assignment.model or llm.model, llm.models),
        model_named(fallback, llm.models) if fallback else None,
        llm.fallback_cooldown_seconds,
    )


async def begin(substrate: Substrate, lease: Lease, deps: RunDeps, prompt: str) -> Start:
    """Where a claimed run begins: its first line, or what a former owner left (PROTOCOL 4, repair comes first)."""
    context = ToolUseContext(cancel=lease.node, mode=deps.policy.mode)
    if lease.tlen == 0:
        line = await first_line(lease, deps.inbox, run=lease.run, prompt=prompt)
        return Start(LoopState(messages=api_messages((), (line,)), tool_use_context=context))
    lines = mended(await substrate.transcripts.lines(lease.task_id), prompt)
    recount(deps.tally, lines, lease.run)
    recall(lines, deps.toolbox, context.memory)
    marks = await substrate.transcripts.marks(lease.task_id)
    past = Past(lease.task_id, lease.run, lines, lease.grant.draft, marks)
    return start_of(past, context, deps.toolbox.restart_of, waits=bool(lease.unread) or deps.tally.asked)


def policy_of(record: Record, settings: Settings) -> Policy:
    """The rules of one task: its own allow rules, and the settings' rules."""
    rules = settings.permissions
    return Policy(mode=record.mode, allow=record.tools + rules.allow, ask=rules.ask, deny=rules.deny)
