"""The runtime loop (SPEC 5): one async generator that sessions, agents, remote agents and teammates all run.

It reads as the twelve events of one turn. It owns no task group and no resources: the executor's task group belongs
to whoever
consumes it, under `aclosing`. It knows nothing of Redis, Celery, or who it runs for.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from celeriac.common.contract.events import Event, ResultEvent, SystemEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Outcome, Subtype
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.policy.hooks import HookEvent, HookName
from celeriac.common.runtime.ask import ask
from celeriac.common.runtime.closing import Closing
from celeriac.common.runtime.deps import RunDeps
from celeriac.common.runtime.executor import Executor
from celeriac.common.runtime.state import LoopState, Step, Transition
from celeriac.common.runtime.turn import Again, Ended, Resumed, Turn, Verdict, answer_blocks, api_messages

REQUEST_START = "stream_request_start"
"""Subtype of the event before each model call; followers are not told of it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins: the history, and an answer or a wait that a former owner left."""

    state: LoopState
    resumed: Resumed | None = None
    waiting: bool = False
    """The inbox comes before the model: entries wait, or the last answer was a text and the run did not end with it."""


async def run(deps: RunDeps, start: Start, executor: Executor) -> AsyncGenerator[Event, None]:
    """Run turns until the run ends or is parked; the last event of an ended run is its result. Raises LeaseLost."""
    closing = Closing(deps, executor)
    state, resumed, waiting = start.state, start.resumed, start.waiting
    executor.learn(state.messages)
    yield _init(deps)
    while True:
        turn = _take_apart(deps, state, resumed)
        deps.observe(Step.REQUEST_START)
        yield _system(deps, REQUEST_START, {"turn": turn.number})
        turn.state = await _pre_sweep(deps, turn.state)
        if not waiting:
            async with aclosing(_answer(deps, turn, executor)) as events:
                async for event in events:
                    yield event
        await _drain(deps, turn, executor)
        if interruption := _interruption(deps, turn):
            yield interruption
        verdict = await _decide(deps, closing, turn)
        for event in turn.events:
            yield event
        if not isinstance(verdict, Again):
            if isinstance(verdict, Ended):
                yield result_event(deps, verdict.outcome)
            return
        state, resumed, waiting = _commit(deps, turn, verdict), None, False
        executor.learn(verdict.added, cut=turn.stop_reason is None)


def _take_apart(deps: RunDeps, state: LoopState, resumed: Resumed | None) -> Turn:
    deps.observe(Step.TAKE_APART)
    number = resumed.turn if resumed is not None else state.turn_count + 1
    return Turn(number=number, state=state, resumed=resumed)


async def _pre_sweep(deps: RunDeps, state: LoopState) -> LoopState:
    deps.observe(Step.PRE_SWEEP)
    swept = await deps.compactor.before_turn(state)
    deps.observe(Step.REACTIVE_COMPACTION)  # acts in `ask`, when a model call has said that it is too long
    return swept


async def _answer(deps: RunDeps, turn: Turn, executor: Executor) -> AsyncGenerator[Event, None]:
    """Events 5 and 6: the model's answer, or the one that was left by a former owner."""
    deps.observe(Step.STREAM)
    if turn.resumed is not None:
        executor.begin(turn.number, turn.state.tool_use_context.memory)
        for block in turn.resumed.blocks:
            executor.add(block, preset=turn.resumed.presets.get(str(block.get("id"))))
    else:
        async with aclosing(ask(deps, turn, executor)) as events:
            async for event in events:
                yield event
    deps.observe(Step.DISPATCH)
    deps.observe(Step.MICROCOMPACT_BOUNDARY)


async def _drain(deps: RunDeps, turn: Turn, executor: Executor) -> None:
    deps.observe(Step.ABORT_CHECK)
    await executor.drain()
    turn.blocks = answer_blocks(executor.blocks)


def _interruption(deps: RunDeps, turn: Turn) -> Event | None:
    deps.observe(Step.INTERRUPTION)
    if deps.cancel.reason in (None, AbortReason.INTERRUPT, AbortReason.LEASE_LOST):
        return None
    return _system(deps, "user_interruption", {"turn": turn.number, "reason": str(deps.cancel.reason)})


async def _decide(deps: RunDeps, closing: Closing, turn: Turn) -> Verdict:
    """Events 10 to 12 up to the transcript: an aborted turn skips 10 and 11."""
    if deps.cancel.aborted:
        return await closing.interrupted(turn)
    deps.observe(Step.AUTO_COMPACTION)
    turn.state = await deps.compactor.after_turn(turn.state, deps.tally.usage)
    deps.observe(Step.STOP_HOOKS)
    if not turn.blocks or all(block.get("type") != "tool_use" for block in turn.blocks):
        await deps.hooks.trigger(HookEvent(HookName.STOP, deps.identity.task_id))
        await deps.memory.on_turn_end(turn.state)
    return await closing.verdict(turn)


def _commit(deps: RunDeps, turn: Turn, verdict: Again) -> LoopState:
    """Event 12: a whole new state."""
    deps.observe(Step.COMMIT)
    run = deps.identity.run
    answered = any(line.role == "assistant" and line.run == run for line in verdict.added)
    answered = answered or (turn.resumed is not None and turn.resumed.stored and turn.resumed.run == run)
    return replace(
        turn.state,
        messages=api_messages(turn.state.messages, verdict.added),
        turn_count=turn.number if answered else turn.state.turn_count,
        max_output_tokens_recovery_count=(
            turn.state.max_output_tokens_recovery_count + 1 if verdict.transition is Transition.OUTPUT_CONTINUED else 0
        ),
        has_attempted_reactive_compact=False,
        stop_hook_active=False,
        transition=verdict.transition,
    )


def _init(deps: RunDeps) -> SystemEvent:
    """What the run is made of; the first event of every owner."""
    data: JsonObject = {
        "cwd": str(deps.workspace.root) if deps.workspace is not None else None,
        "tools": list(deps.toolbox.names),
        "model": deps.switch.current.name,
        "permissionMode": deps.policy.mode.value,
    }
    return _system(deps, "init", data)


def _system(deps: RunDeps, subtype: str, data: JsonObject) -> SystemEvent:
    identity = deps.identity
    return SystemEvent(
        session_id=identity.session,
        task_id=identity.task_id,
        parent_task_id=identity.parent,
        worker=identity.worker,
        run=identity.run,
        subtype=subtype,
        data=data,
    )


def result_event(deps: RunDeps, outcome: Outcome) -> ResultEvent:
    """The result message of an ended run; only success carries `result`."""
    identity = deps.identity
    success = outcome.subtype is Subtype.SUCCESS
    return ResultEvent(
        session_id=identity.session,
        task_id=identity.task_id,
        parent_task_id=identity.parent,
        worker=identity.worker,
        run=identity.run,
        subtype=outcome.subtype,
        is_error=not success,
        state=outcome.state.value,
        result=outcome.text if success else None,
        structured_output=outcome.structured,
        reason=outcome.reason,
        num_turns=outcome.usage.turns,
        usage=outcome.usage,
        stop_reason=outcome.stop_reason,
        permission_denials=outcome.denials,
    )
