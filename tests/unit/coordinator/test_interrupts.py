"""Ctrl-C as something to wait for."""

import asyncio
import os
import signal

from celeriac.coordinator.interrupts import Interrupts


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def forever(ended: list[str]) -> int:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cleaned up")
    return 1


async def test_work_that_ends_gives_its_value() -> None:
    async def work() -> int:
        return 7

    with Interrupts() as interrupts:
        assert await interrupts.attend(work()) == 7


async def test_the_first_signal_ends_the_work_in_order() -> None:
    ended: list[str] = []
    async with asyncio.timeout(5):
        with Interrupts() as interrupts:
            asyncio.get_running_loop().call_soon(interrupt)
            assert await interrupts.attend(forever(ended)) is None
    assert ended == ["cleaned up"]


async def test_outer_work_hears_of_the_second_signal_before_it_is_cancelled() -> None:
    ended: list[str] = []

    async def work() -> int:
        await interrupts.attend(forever(ended))
        ended.append("first")
        asyncio.get_running_loop().call_soon(interrupt)
        return await forever(ended)

    async with asyncio.timeout(5):
        with Interrupts() as interrupts:
            asyncio.get_running_loop().call_soon(interrupt)
            assert await interrupts.attend(work(), until=2, at_signal=lambda: ended.append("kill")) is None
    assert ended == ["cleaned up", "first", "kill", "cleaned up"]
