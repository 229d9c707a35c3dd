"""Bounded waiting for tests: never a sleep, always a condition."""

import asyncio
import inspect
from collections.abc import Callable

LOOK_SECONDS = 0.03


async def until(condition: Callable[[], object], *, seconds: float = 20.0, what: str = "") -> None:
    """Wait until `condition`, a function or a coroutine function, gives something true.

    Raises AssertionError when `seconds` are over.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        await asyncio.sleep(LOOK_SECONDS)
