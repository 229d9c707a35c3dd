"""Runs of the loop for tests: a real lease on the in-memory server, a scripted model, tools that a test controls."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from celeriac.common.context.assemble import TextSections
from celeriac.common.contract import ids
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Line
from celeriac.common.contract.models import NamedModel
from celeriac.common.contract.task import Limits, Record, SessionSpec
from celeriac.common.lifetime.cleanup import CleanupRegistry
from celeriac.common.llm.client import ModelClient
from celeriac.common.policy.decide import Policy, StandardPermissions
from celeriac.common.policy.hooks import Hooks, NullHooks
from celeriac.common.runtime.deps import (
    Budget,
    Compactor,
    Governor,
    Identity,
    LoopSettings,
    Memory,
    NullBudget,
    NullCompactor,
    NullGovernor,
    NullMemory,
    RunDeps,
    Tally,
)
from celeriac.common.runtime.drive import consume, keep
from celeriac.common.runtime.fallback import Switch
from celeriac.common.runtime.output import LiveOutput
from celeriac.common.runtime.runner import TaskInbox, begin
from celeriac.common.runtime.state import Step
from celeriac.common.runtime.synthetic_output import SyntheticOutput
from celeriac.common.settings import RetrySettings
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import ClaimRefusal
from celeriac.common.testing.scripted import Scripted, ScriptedModel
from celeriac.common.testing.substrate_kit import new_task
from celeriac.common.tools.base import AnyTool, Described, Restart, ToolContext, ToolInput, ToolResult
from celeriac.common.tools.toolbox import Toolbox


class Words(ToolInput):
    """Any text."""

    text: str = ""


class Probe(Described[Words]):
    """A tool whose calls a test sees and may hold; stands under the name of a real one."""

    input = Words
    description = "A tool of a test."

    def __init__(self, name: str, *, changes: bool, restart: Restart = Restart.UNKNOWN) -> None:
        """`changes`: whether its calls are state-changing."""
        self.wire_name = name
        self.restart = restart
        self.calls: list[str] = []
        self.ended: list[str] = []
        self.gate: asyncio.Event | None = None
        self.begun = asyncio.Event()
        self._changes = changes

    def read_only(self, i: Words) -> bool:
        """As constructed."""
        return not self._changes

    async def run(self, i: Words, ctx: ToolContext) -> ToolResult:
        """Note the call, wait for the gate or an abort."""
        self.calls.append(i.text)
        self.begun.set()
        if self.gate is not None:
            gate, stop = asyncio.ensure_future(self.gate.wait()), asyncio.ensure_future(ctx.cancel.wait())
            await asyncio.wait({gate, stop}, return_when=asyncio.FIRST_COMPLETED)
            gate.cancel(), stop.cancel()
        self.ended.append(i.text)
        return ToolResult.error("stopped") if ctx.cancel.aborted else ToolResult(f"did {i.text}")


@dataclass(slots=True)
class Stage:
    """One session on a substrate, run by the real loop."""

    substrate: Substrate
    tools: Sequence[AnyTool]
    steps: list[Step] = field(default_factory=list)
    prompt: str = "do it"
    kind: Kind = Kind.AGENT
    limits: Limits = Limits()
    tally: Tally = field(default_factory=Tally)
    compactor: Compactor = NullCompactor()
    memory: Memory = NullMemory()
    budget: Budget = NullBudget()
    governor: Governor = NullGovernor()
    hooks: Hooks = NullHooks()
    retry: RetrySettings = RetrySettings(base_seconds=0.001, max_seconds=0.01)
    model: NamedModel = NamedModel(name="scripted")
    fallback: NamedModel | None = None
    cooldown: float = 300.0
    """Seconds until the first model is asked again."""
    client: ModelClient | None = None
    """Asked instead of the scripted answers."""

    async def create(self) -> Record:
        """A fresh session."""
        task_id = ids.new_session()
        await self.substrate.records.create(new_task(task_id, None, SessionSpec(prompt=self.prompt)), parent_token=None)
        return await self.substrate.records.get(task_id)

    async def claim(self, record: Record) -> Lease:
        """Become its owner."""
        lease = await self.substrate.claim(record.task_id, None, process="test")
        assert not isinstance(lease, ClaimRefusal), lease
        return lease

    async def play(self, record: Record, lease: Lease, answers: Sequence[Scripted]) -> ScriptedModel:
        """Run until the end; the model with what it was asked."""
        model = ScriptedModel(list(answers))
        output = LiveOutput(lease)
        self.tally = Tally(usage=record.usage, asked=record.asked, tries=record.tries)

        async def work(group: asyncio.TaskGroup) -> None:
            await lease.renew()
            deps = self._deps(record, lease, model, output)
            await consume(deps, await begin(self.substrate, lease, deps, self.prompt), group)

        await keep(lease, output, work, self.tally)
        return model

    async def whole(self, *answers: Scripted) -> tuple[Record, tuple[Line, ...], ScriptedModel]:
        """Create, claim, play: the record and the transcript afterwards, and the model."""
        record = await self.create()
        model = await self.play(record, await self.claim(record), answers)
        return (
            await self.substrate.records.get(record.task_id),
            await self.substrate.transcripts.lines(record.task_id),
            model,
        )

    def _deps(self, record: Record, lease: Lease, model: ScriptedModel, output: LiveOutput) -> RunDeps:
        return RunDeps(
            identity=Identity(record.task_id, record.session, None, Kind.SESSION, record.path, lease.run, "test"),
            settings=LoopSettings(limits=self.limits, retry=self.retry),
            switch=Switch(self.model, self.fallback, self.cooldown),
            model=self.client or model,
            toolbox=Toolbox([*self.tools, SyntheticOutput()], kind=self.kind),
            permissions=StandardPermissions(),
            policy=Policy(mode=record.mode, allow=tuple(tool.wire_name for tool in self.tools)),
            writer=lease,
            inbox=TaskInbox(self.substrate, lease),
            output=output,
            sections=TextSections("You are tested."),
            cancel=lease.node,
            cleanup=CleanupRegistry(),
            tally=self.tally,
            workspace=_Root(Path("/nowhere")),
            observe=self.steps.append,
            compactor=self.compactor,
            memory=self.memory,
            budget=self.budget,
            governor=self.governor,
            hooks=self.hooks,
        )


@dataclass(frozen=True, slots=True)
class _Root:
    root: Path
