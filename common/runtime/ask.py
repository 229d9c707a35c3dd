"""Events 5 and 6 of a turn: ask the model, dispatch each tool call as its block completes, mend a stream that
breaks."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.events import Event, StreamEvent, SystemEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.tool_names import SYNTHETIC_OUTPUT
from celeriac.common.llm.client import (
    BlockDone,
    BrokenStream,
    CallKey,
    Finished,
    ModelEvent,
    ModelFailure,
    Pulse,
    RawEvent,
    Request,
    TextDelta,
    TooLong,
)
from celeriac.common.runtime.deps import RunDeps
from celeriac.common.runtime.executor import Executor
from celeriac.common.runtime.state import Step, Transition
from celeriac.common.runtime.stops import ParkRun, StopRun
from celeriac.common.runtime.turn import Turn

TURN_LIMIT_TEXT = "not run: the task's limit of tool-use turns is reached"


async def ask(deps: RunDeps, turn: Turn, executor: Executor) -> AsyncGenerator[Event, None]:
    """Ask until there is an answer, the run is aborted, or the model has failed (left in `turn.failure`).

    A broken stream is asked again up to `settings.retry.attempts` times in all, unless a state-changing call of it has
    started:
    then its complete blocks are the answer (SPEC 5, write-ahead of effects).
    """
    for attempt in range(1, deps.settings.retry.attempts + 1):
        # First, also of a run that is aborted: what the executor holds of the turn before is stored already.
        executor.begin(turn.number, turn.state.tool_use_context.memory)
        if deps.cancel.aborted:
            return
        try:
            async with aclosing(_once(deps, turn, executor, attempt)) as events:
                async for event in events:
                    yield event
        except ModelFailure as failure:
            if executor.has_effect or deps.cancel.aborted:
                turn.failure = None  # also that of an earlier attempt: what is there is the answer
                return
            await executor.discard()
            turn.failure = failure
            if isinstance(failure, BrokenStream):
                yield _retry_event(deps, attempt, failure)
            elif not await _shrunk(deps, turn):
                return
        else:
            turn.failure = None
            return


async def _shrunk(deps: RunDeps, turn: Turn) -> bool:
    """Reactive compaction, once per turn (SPEC 5, event 4): whether the call is worth asking again."""
    if not isinstance(turn.failure, TooLong) or turn.state.has_attempted_reactive_compact:
        return False
    deps.observe(Step.REACTIVE_COMPACTION)
    smaller = await deps.compactor.on_too_long(turn.state, turn.failure)
    if smaller is None:
        return False
    turn.state = replace(smaller, has_attempted_reactive_compact=True, transition=Transition.REACTIVE_RETRY)
    return True


async def _once(deps: RunDeps, turn: Turn, executor: Executor, attempt: int) -> AsyncGenerator[Event, None]:
    request = _request(deps, turn, attempt)
    if not deps.writer.may_act():
        raise LeaseLost(f"{deps.identity.task_id}: the lease ran out before the model was asked")
    try:
        await deps.governor.acquire(request.model, request.max_tokens)
        request = replace(request, max_tokens=await deps.budget.reserve(request))
    except (StopRun, ParkRun) as halt:
        turn.halt = halt
        return
    stream = deps.model.stream(request, deps.cancel)
    try:
        async for event in stream:
            if (seen := await _take(deps, turn, executor, request, event)) is not None:
                yield seen
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def _take(deps: RunDeps, turn: Turn, executor: Executor, request: Request, event: ModelEvent) -> Event | None:
    match event:
        case TextDelta(text=text):
            deps.output.text(text)
        case Pulse():
            deps.output.heard()
        case BlockDone(block=block):
            _dispatch(deps, executor, block)
        case Finished(stop_reason=stop_reason, usage=usage):
            turn.stop_reason = deps.tally.stop_reason = stop_reason
            deps.tally.add(usage.model_copy(update={"turns": 1}), request.model)
            await deps.budget.settle(request, usage)
        case RawEvent(event=raw):
            identity = deps.identity
            return StreamEvent(session_id=identity.session, task_id=identity.task_id, run=identity.run, event=raw)
        case _:
            pass
    return None


def _dispatch(deps: RunDeps, executor: Executor, block: JsonObject) -> None:
    over = deps.turns_spent and block.get("type") == "tool_use" and block.get("name") != SYNTHETIC_OUTPUT
    executor.admit(block, TURN_LIMIT_TEXT if over else None)


def _request(deps: RunDeps, turn: Turn, attempt: int) -> Request:
    identity = deps.identity
    return Request(
        key=CallKey(identity.session, identity.path, identity.run, turn.number, attempt),
        model=deps.settings.model,
        max_tokens=deps.settings.max_tokens,
        system=deps.sections.render(),
        tools_wire=deps.toolbox.definitions(),
        messages=turn.state.messages,
        effort=deps.settings.effort,
        thinking=deps.settings.thinking,
        joined=deps.joined,
    )


def _retry_event(deps: RunDeps, attempt: int, broken: BrokenStream) -> Event:
    identity = deps.identity
    return SystemEvent(
        session_id=identity.session,
        task_id=identity.task_id,
        parent_task_id=identity.parent,
        worker=identity.worker,
        run=identity.run,
        subtype="api_retry",
        data={"attempt": attempt, "max_retries": deps.settings.retry.attempts - 1, "error": str(broken)},
    )
