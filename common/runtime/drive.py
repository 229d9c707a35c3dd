"""Consumes the loop for a claimed task: lease kept alive, output sent, every end made durable (DESIGN 4).

The border of a run: whatever goes wrong inside becomes a failed run with its reason, never silence.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from celeriac.common.contract.errors import CeleriacError, LeaseLost, ServerUnreachable
from celeriac.common.contract.events import SystemEvent
from celeriac.common.contract.task import Outcome, State, Subtype
from celeriac.common.runtime import loop
from celeriac.common.runtime.deps import RunDeps, Tally
from celeriac.common.runtime.executor import Executor
from celeriac.common.runtime.loop import REQUEST_START, Start
from celeriac.common.runtime.output import LiveOutput
from celeriac.common.substrate.leases import Lease
from celeriac.common.tools.bounds import bounded
from celeriac.common.tools.invoke import MAX_REASON

log = logging.getLogger(__name__)


async def keep(
    lease: Lease,
    output: LiveOutput,
    work: Callable[[asyncio.TaskGroup], Awaitable[None]],
    tally: Tally | None = None,
) -> None:
    """Run `work` while the lease is renewed and output sent; a defect fails the run, with what `tally` holds by then.
    A lost lease ends it quietly; so does a server that is away for long: the lease runs out, and the next owner goes on
    from what is stored."""
    try:
        async with asyncio.TaskGroup() as group:
            side = [
                group.create_task(lease.heartbeat(), name=f"heartbeat {lease.task_id}"),
                group.create_task(output.run(), name=f"output {lease.task_id}"),
            ]
            await work(group)
            for task in side:
                task.cancel()
    except* (LeaseLost, ServerUnreachable) as lost:
        log.warning("%s: %s", lease.task_id, lost.exceptions[0])
    except* Exception as errors:
        log.exception("%s: the run ends with an error", lease.task_id)
        await _fail(lease, errors.exceptions[0], tally or Tally())


async def _fail(lease: Lease, error: Exception, tally: Tally) -> None:
    """Whatever went wrong becomes the run's reason, never silence."""
    known = isinstance(error, CeleriacError)
    text = str(error) if known else f"internal error: {type(error).__name__}: {error}"
    reason = bounded(text, MAX_REASON)
    outcome = Outcome(
        state=State.FAILED,
        subtype=Subtype.EXECUTION,
        reason=reason,
        text=tally.last_text or None,
        partial=True,
        usage=tally.usage,
        stop_reason=tally.stop_reason,
        denials=tuple(tally.denials),
    )
    try:
        await lease.finish(outcome)
    except LeaseLost as lost:
        log.warning("%s: %s", lease.task_id, lost)


async def consume(deps: RunDeps, start: Start, group: asyncio.TaskGroup) -> None:
    """Run the loop to its end; then no call of it runs, and its clean-ups have run."""
    executor = Executor(deps, group)
    try:
        async with aclosing(loop.run(deps, start, executor)) as events:
            async for event in events:
                if isinstance(event, SystemEvent) and event.subtype != REQUEST_START:
                    deps.output.notice(event.subtype, event.data)  # committed lines are seen by followers as they are
    finally:
        await executor.discard()
        await deps.cleanup.run()
