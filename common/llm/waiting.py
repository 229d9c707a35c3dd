"""Waiting for a model in a way that an abort ends at once."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from celeriac.common.lifetime.cancel import AbortNode

T = TypeVar("T")


class Interrupted(Exception):
    """The abort node was aborted while something was awaited under it."""


async def unless_aborted(cancel: AbortNode, wait: Coroutine[object, object, T]) -> T:
    """Await `wait`; raises Interrupted, with the wait cancelled, as soon as `cancel` is aborted.

    A timeout scope without a deadline is moved into the past: no second task per event is needed.
    """
    if cancel.aborted:  # a wait whose data is there already would never be suspended, hence never interrupted
        wait.close()
        raise Interrupted
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    undo = None
    try:
        async with scope:
            undo = cancel.on_abort(lambda _: scope.reschedule(loop.time()))
            return await wait
    except TimeoutError:
        if scope.expired():
            raise Interrupted from None
        raise
    finally:
        if undo is not None:
            undo()


async def pause(cancel: AbortNode, seconds: float) -> None:
    """Let `seconds` pass, or at least let others run. Raises Interrupted."""
    await unless_aborted(cancel, asyncio.sleep(seconds))
