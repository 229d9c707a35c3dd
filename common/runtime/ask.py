"""Events 5 and 6 of a turn: ask the model, dispatch each tool call as its block completes, mend a stream that
breaks."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.events import Event, StreamEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Usage
from celeriac.common.contract.tool_names import SYNTHETIC_OUTPUT
from celeriac.common.llm.client import (
    BlockDone,
    Finished,
    ModelEvent,
    ModelFailure,
    Pulse,
    RawEvent,
    Request,
    TextDelta,
)
from celeriac.common.runtime.deps import RunDeps
from celeriac.common.runtime.executor import Executor
from celeriac.common.runtime.recovery import Recovery
from celeriac.common.runtime.stops import ParkRun, StopRun
from celeriac.common.runtime.turn import Turn

TURN_LIMIT_TEXT = "not run: the task's limit of tool-use turns is reached"


async def ask(deps: RunDeps, turn: Turn, executor: Executor) -> AsyncGenerator[Event, None]:
    """Ask until there is an answer, the run is aborted or halted, or the model has failed (`turn.failure`).

    A call that failed is asked again as `Recovery` decides, unless a state-changing call of it has started: then its
    complete blocks are the answer (SPEC 5, write-ahead of effects).
    """
    recovery = Recovery(deps, turn, executor)
    while True:
        # First, also of a run that is aborted: what the executor holds of the turn before is stored already.
        executor.begin(turn.number, turn.state.tool_use_context.memory)
        if deps.cancel.aborted:
            return
        try:
            async with aclosing(_once(deps, turn, executor, recovery.request())) as events:
                async for event in events:
                    yield event
        except ModelFailure as failure:
            retry = await recovery.failed(failure)
            if retry is None:
                return
            yield retry.event
            if not await recovery.waited(retry):
                return
        else:
            if not await recovery.answered():
                return


async def _once(deps: RunDeps, turn: Turn, executor: Executor, request: Request) -> AsyncGenerator[Event, None]:
    turn.failure = None
    if not deps.writer.may_act():
        raise LeaseLost(f"{deps.identity.task_id}: the lease ran out before the model was asked")
    try:
        await deps.governor.acquire(request.model, request.max_tokens)
        granted = await deps.budget.reserve(request)
    except (StopRun, ParkRun) as halt:
        turn.halt = halt
        return
    usage: Usage | None = None
    try:
        async with aclosing(_answer(deps, replace(request, max_tokens=granted))) as answer:
            async for event in answer:
                if isinstance(event, Finished):
                    usage = event.usage
                if (seen := _take(deps, turn, executor, request, event)) is not None:
                    yield seen
    except ModelFailure as failure:
        usage = None if failure.billable else Usage()
        raise
    finally:
        await deps.budget.settle(request, usage)


async def _answer(deps: RunDeps, request: Request) -> AsyncGenerator[ModelEvent, None]:
    stream = deps.model.stream(request, deps.cancel)
    try:
        async for event in stream:
            yield event
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def _take(deps: RunDeps, turn: Turn, executor: Executor, request: Request, event: ModelEvent) -> Event | None:
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
        case RawEvent(event=raw):
            identity = deps.identity
            return StreamEvent(session_id=identity.session, task_id=identity.task_id, run=identity.run, event=raw)
        case _:
            pass
    return None


def _dispatch(deps: RunDeps, executor: Executor, block: JsonObject) -> None:
    over = deps.turns_spent and block.get("type") == "tool_use" and block.get("name") != SYNTHETIC_OUTPUT
    executor.admit(block, TURN_LIMIT_TEXT if over else None)
