"""The order of answers in a job whose tasks run in parallel: an answer that follows other calls waits for them."""

import asyncio
from collections.abc import Awaitable, Callable

from celeriac.common.llm.client import ReplayFailed
from celeriac.common.llm.playback import Served
from celeriac.common.llm.script import CallId, ScriptLine

WAIT_SECONDS = 60.0
"""How long an answer is held back: longer than parallel tasks of a script ever differ, but no hang."""
LOOK_SECONDS = 0.05


async def in_order(line: ScriptLine, call: CallId, served: Callable[[], Awaitable[Served]]) -> None:
    """Wait until all calls that this line follows have been asked. Raises ReplayFailed if one never is."""
    missing = set(line.entry.follows)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while missing and (missing := missing - (await served()).keys()):  # noqa: ASYNC110 - other processes ask
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise ReplayFailed(f"replay waited {WAIT_SECONDS:.0f} s at {call} for {min(missing)}") from None
