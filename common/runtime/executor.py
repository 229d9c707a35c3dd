"""Streaming dispatch: each tool call starts the moment its block is complete (SPEC 5, event 6).

Read-only calls run together; a state-changing call is a barrier. Before one starts, the answer's complete blocks and
its start
mark are stored as the draft (PROTOCOL 5). Knows tools and the writer; does not know models or transcripts.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from celeriac.common.contract.errors import CeleriacError, LeaseLost, ServerUnreachable
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Draft, NewLine, ToolMeta, tool_result_block
from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import SYNTHETIC_OUTPUT
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.llm.client import ApiMessage
from celeriac.common.llm.wire import clean
from celeriac.common.runtime.call_ids import REPEATED, CallIds
from celeriac.common.runtime.deps import RunDeps
from celeriac.common.tools.base import Call, ToolContext, ToolResult
from celeriac.common.tools.invoke import Invoke

log = logging.getLogger(__name__)

MAX_PARALLEL = 10
"""Read-only calls that run together (SPEC 5, event 6)."""

ABORT_GRACE_SECONDS = 4.0
"""How long an aborted call may take to end by itself: 1 s from TERM to KILL for its processes (DESIGN 4) and the
reading of what they left."""

INTERRUPTED = "interrupted: the run was stopped before this call ended"
SECOND_OUTPUT = "only the first SyntheticOutput of a message counts"


DENIED = "denied"
"""Stands for the tool in what is kept of a denied call: no tool has this name."""


class RunStopped(CeleriacError):
    """The run was stopped between the answer and the start of this call: it does not start."""


@dataclass(slots=True, eq=False)
class Slot:
    """One tool_use of the answer."""

    call: Call
    position: int
    read_only: bool
    final: bool = False
    effect: bool = False
    """Its start mark was sent: the answer may no longer be discarded."""
    result: JsonObject | None = None
    meta: Value | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Executor:
    """Runs the calls of one answer after another; its task group belongs to whoever consumes the loop."""

    def __init__(self, deps: RunDeps, group: asyncio.TaskGroup) -> None:
        """Use one for a whole run."""
        self._deps = deps
        self._group = group
        self._parallel = asyncio.Semaphore(MAX_PARALLEL)
        self._invoke = Invoke(
            toolbox=deps.toolbox,
            permissions=deps.permissions,
            policy=deps.policy,
            hooks=deps.hooks,
            journal=self,
            denials=deps.tally.denials,
        )
        self._slots: list[Slot] = []
        self._ids = CallIds()
        self._turn = 0
        self._memory: dict[str, Value] = {}
        self.blocks: list[JsonObject] = []

    def begin(self, turn: int, memory: dict[str, Value]) -> None:
        """A new answer (or another attempt at one) begins."""
        self._turn, self._memory = turn, memory
        self._slots, self.blocks = [], []

    def learn(self, lines: Iterable[ApiMessage | NewLine], *, cut: bool = False) -> None:
        """These have become part of the history: the ids of their calls are taken. `cut`: the answer's stream broke."""
        self._ids.learn([block for line in lines for block in line.content], cut=cut)

    def admit(self, block: JsonObject, refusal: str | None = None) -> None:
        """A block has come from the model; a call with a `refusal` is not run. One that comes twice counts once
        (C82)."""
        if block.get("type") != "tool_use":
            self.add(block)
            return
        identity = self._deps.identity
        place = f"{identity.task_id};{identity.run};{self._turn};{len(self.blocks)}"
        settled = self._ids.settled(block, self.blocks, place)
        if settled is None:
            return
        why = refusal or (REPEATED if self._ids.repeats(block) else None)
        self.add(settled, preset=None if why is None else tool_result_block(str(settled["id"]), why, is_error=True))

    def add(self, block: JsonObject, *, preset: JsonObject | None = None) -> None:
        """A block is complete. A tool_use is dispatched at once, unless its result is `preset`."""
        self.blocks.append(block)
        if block.get("type") != "tool_use":
            return
        slot = self._slot(block)
        self._slots.append(slot)
        if preset is not None:
            self._settle(slot, preset)
        elif slot.final:
            if any(other.final for other in self._slots[:-1]):
                self._settle(slot, tool_result_block(slot.call.id, SECOND_OUTPUT, is_error=True))
        else:
            slot.task = self._group.create_task(self._run(slot), name=f"tool {slot.call.name} {slot.call.id}")

    def _slot(self, block: JsonObject) -> Slot:
        raw = block["input"]
        assert isinstance(raw, dict)
        call = Call(id=str(block["id"]), name=str(block["name"]), raw=raw)
        final = call.name == SYNTHETIC_OUTPUT
        return Slot(call, len(self.blocks) - 1, final or self._invoke.read_only(call), final)

    @staticmethod
    def _settle(slot: Slot, result: JsonObject) -> None:
        slot.result = result
        slot.final = False
        slot.done.set()

    @property
    def has_effect(self) -> bool:
        """Whether a state-changing call of this answer has started: then the answer is never discarded."""
        return any(slot.effect for slot in self._slots)

    @property
    def has_calls(self) -> bool:
        """Whether the answer asked for any tool."""
        return bool(self._slots)

    @property
    def only_concludes(self) -> bool:
        """Whether the answer asked for a SyntheticOutput and nothing else."""
        return bool(self._slots) and all(slot.final for slot in self._slots)

    @property
    def cut(self) -> bool:
        """Whether a call has no result: it was cut, had not started, or is the SyntheticOutput, which runs last."""
        return any(slot.result is None for slot in self._slots)

    @property
    def finale(self) -> Call | None:
        """The SyntheticOutput of the answer: it runs last, when all others have ended (PROTOCOL 4)."""
        return next((slot.call for slot in self._slots if slot.final), None)

    def results(self, finale: JsonObject | None = None) -> tuple[JsonObject, ...]:
        """The tool_result blocks in call order; `finale` stands in the place of the SyntheticOutput."""
        found = (finale if slot.final and finale is not None else slot.result for slot in self._slots)
        return tuple(
            result or tool_result_block(slot.call.id, INTERRUPTED, is_error=True)
            for slot, result in zip(self._slots, found, strict=True)
        )

    @property
    def called(self) -> frozenset[str]:
        """The names of the tools that the answer asked for."""
        return frozenset(slot.call.name for slot in self._slots)

    def metas(self) -> tuple[ToolMeta, ...]:
        """What the tools keep of these results, and what of the calls was denied."""
        kept = [_meta(slot.call.name, slot.meta) for slot in self._slots if slot.meta is not None]
        called = {slot.call.id for slot in self._slots}
        denied = [_meta(DENIED, denial) for denial in self._deps.tally.denials if denial.tool_use_id in called]
        return (*kept, *denied)

    async def drain(self) -> None:
        """Wait until every call has ended; after an abort, for ABORT_GRACE_SECONDS at most."""
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        if not tasks:
            return
        everything = asyncio.ensure_future(asyncio.wait(tasks))
        aborted = asyncio.ensure_future(self._deps.cancel.wait())
        try:
            await asyncio.wait({everything, aborted}, return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                await asyncio.wait(tasks, timeout=ABORT_GRACE_SECONDS)
                await self._cancel(tasks)
        finally:
            aborted.cancel()
            everything.cancel()

    async def discard(self) -> None:
        """Throw the answer away: only for one in which no state-changing call has started."""
        await self._cancel([slot.task for slot in self._slots if slot.task is not None])
        thrown = {slot.call.id for slot in self._slots}
        denials = self._deps.tally.denials
        denials[:] = [denial for denial in denials if denial.tool_use_id not in thrown]
        self._slots, self.blocks = [], []

    @staticmethod
    async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks) if tasks else None

    async def _run(self, slot: Slot) -> None:
        try:
            for before in self._before(slot):
                await before.done.wait()
            if (result := await self._call(slot)) is not None:
                slot.result = tool_result_block(slot.call.id, result.text, is_error=result.is_error)
                slot.meta = result.meta
        except (LeaseLost, ServerUnreachable) as error:  # what a request did is not known: the next owner asks again
            log.warning("%s %s: %s", slot.call.name, slot.call.id, error)
            self._deps.cancel.abort(AbortReason.LEASE_LOST)
        except Exception as error:  # a border: one call's defect must not take the run's task group down
            log.exception("%s %s", slot.call.name, slot.call.id)
            slot.result = tool_result_block(slot.call.id, f"internal error: {error}", is_error=True)
        finally:
            slot.done.set()

    def _before(self, slot: Slot) -> Sequence[Slot]:
        """What must have ended before this call starts: all for a barrier, the last barrier for a read-only one."""
        earlier = self._slots[: self._slots.index(slot)]
        return [other for other in earlier if not (slot.read_only and other.read_only) and not other.final]

    async def _call(self, slot: Slot) -> ToolResult | None:
        if not slot.read_only:
            return await self._start(slot)
        async with self._parallel:
            return await self._start(slot)

    async def _start(self, slot: Slot) -> ToolResult | None:
        """The call's result; None if it was not started, since the run is aborted."""
        if self._deps.cancel.aborted:
            return None
        if not self._deps.writer.may_act():
            raise LeaseLost(f"{self._deps.identity.task_id}: the lease ran out before {slot.call.name} started")
        self._deps.tally.tool_used()
        self._deps.output.activity(_activity(slot.call))
        return await self._invoke(slot.call, self._context(slot))

    def _context(self, slot: Slot) -> ToolContext:
        async def emit(text: str) -> None:
            self._deps.output.printed(text)

        identity = self._deps.identity
        return ToolContext(
            task_id=identity.task_id,
            run=identity.run,
            turn=self._turn,
            call_id=slot.call.id,
            block=slot.position,
            cancel=self._deps.cancel.child(),
            emit=emit,
            cleanup=self._deps.cleanup,
            mode=self._deps.policy.mode,
            workspace=self._deps.workspace,
            state=self._memory,
        )

    async def started(self, call: Call, ctx: ToolContext) -> None:
        """Journal: before a state-changing call. Raises RunStopped, LeaseLost."""
        slot = next(slot for slot in self._slots if slot.call.id == call.id)
        slot.effect = True  # before the first await: a stream that breaks now must find it
        draft = Draft(run=ctx.run, turn=ctx.turn, blocks=tuple(self.blocks))
        ack = await self._deps.writer.draft(draft, [call.id])
        if ack.stop is not None:
            raise RunStopped(INTERRUPTED)

    async def done(self, call: Call, result: ToolResult, ctx: ToolContext) -> None:
        """Journal: after a state-changing call."""
        await self._deps.writer.tool_done(call.id, tool_result_block(call.id, result.text, is_error=result.is_error))


ACTIVITY_WIDTH = 80
"""Characters of an activity line: one line of a narrow terminal."""


def _meta(tool: str, kept: Value) -> ToolMeta:
    """Cleaned: the name of a file may be no valid text, and then the line could not be written (C31)."""
    return ToolMeta(tool=tool, data={name: clean(value) for name, value in kept.model_dump(mode="json").items()})


def _activity(call: Call) -> str:
    """`Bash: pytest -q`: the tool and the first text of its input, one short line."""
    hint = next((value for value in call.raw.values() if isinstance(value, str)), "")
    line = " ".join(f"{call.name}: {hint}".split()) if hint else call.name
    return line if len(line) <= ACTIVITY_WIDTH else line[: ACTIVITY_WIDTH - 1] + "…"
