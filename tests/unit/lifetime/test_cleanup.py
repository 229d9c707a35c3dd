"""The clean-up registry: newest first, each for itself (SPEC 9)."""

import asyncio

import pytest

from celeriac.common.lifetime.cleanup import CleanupRegistry


@pytest.fixture
def ran() -> list[str]:
    return []


def registry(ran: list[str], *keys: str) -> CleanupRegistry:
    made = CleanupRegistry()
    for key in keys:

        async def clean_up(key: str = key) -> None:
            ran.append(key)

        made.register(key, clean_up)
    return made


async def test_the_newest_runs_first_and_each_once(ran: list[str]) -> None:
    made = registry(ran, "a", "b", "c")
    made.forget("b")
    made.forget("unknown")
    await made.run()
    await made.run()
    assert ran == ["c", "a"]


async def test_the_same_key_is_kept_once(ran: list[str]) -> None:
    await registry(ran, "a", "a").run()
    assert ran == ["a"]


async def test_a_failure_stops_no_other(ran: list[str]) -> None:
    made = registry(ran, "a")

    async def broken() -> None:
        raise ValueError("broken")

    made.register("broken", broken)
    await made.run()
    assert ran == ["a"]


async def test_a_cancellation_takes_effect_when_all_have_run(ran: list[str]) -> None:
    made, begun = registry(ran, "a"), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.Event().wait()

    made.register("slow", slow)
    running = asyncio.ensure_future(made.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ran == ["a"]
