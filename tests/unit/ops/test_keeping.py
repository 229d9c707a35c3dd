"""What ends is started again, later each time; what ends too often ends `up`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from celeriac.ops import keeping
from celeriac.ops.children import DidNotStart
from celeriac.ops.keeping import CrashLoop, Keeper, Life, did_not_start


@dataclass
class Ends:
    """A life that ends when it is told."""

    code: int
    when: asyncio.Event

    async def ended(self) -> int:
        await self.when.wait()
        return self.code


@dataclass
class Flaky:
    """Ends with these codes one after the other; None: does not start; after them it lives on."""

    codes: list[int | None]
    name: str = "worker-1"
    log: Path = Path("/logs/worker-1.log")
    starts: int = 0
    living: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Life]:
        self.starts += 1
        code = self.codes.pop(0) if self.codes else 0
        if code is None:
            raise DidNotStart("worker-1 did not start: no luck")
        ends = Ends(code, asyncio.Event())
        if self.codes:
            ends.when.set()
        else:
            self.living.set()
        yield ends


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FIRST_PAUSE_SECONDS", 0.01)


async def test_what_ends_comes_back_and_both_are_told() -> None:
    said: list[str] = []
    part = Flaky([-9, None, 1, 0])
    keeper = Keeper(part, said.append)
    async with asyncio.timeout(20):
        keeping_it = asyncio.create_task(keeper.keep())
        await part.living.wait()
        keeping_it.cancel()
        await asyncio.gather(keeping_it, return_exceptions=True)
    assert said == [
        "worker-1 was killed by SIGKILL; it is started again in 0.01 s",
        "worker-1 did not start again (worker-1 did not start: no luck); it is started again in 0.02 s",
        "worker-1 is back",
        "worker-1 exited with code 1; it is started again in 0.04 s",
        "worker-1 is back",
    ]


async def test_a_first_start_that_fails_is_not_repeated() -> None:
    part = Flaky([None, 0])
    with pytest.raises(DidNotStart, match="no luck"):
        await Keeper(part, print).keep()
    assert part.starts == 1


async def test_a_crash_loop_is_an_error_that_names_the_log() -> None:
    part = Flaky([1] * 9)
    with pytest.raises(CrashLoop, match=r"worker-1 ended 5 times within 60 s, at last it exited .* /logs/worker-1.log"):
        async with asyncio.timeout(20):
            await Keeper(part, lambda _: None).keep()
    assert part.starts == keeping.ENDS_ALLOWED


async def test_ends_that_lie_far_apart_are_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "WINDOW_SECONDS", 0.0)
    part = Flaky([1] * 12)
    async with asyncio.timeout(20):
        keeping_it = asyncio.create_task(Keeper(part, lambda _: None).keep())
        await part.living.wait()
        keeping_it.cancel()
        await asyncio.gather(keeping_it, return_exceptions=True)
    assert part.starts == 12


def test_a_failed_start_is_told_in_one_line() -> None:
    error = did_not_start("flower", "celeriac: port 80 is taken\nmore", Path("/x.log"))
    assert str(error) == "flower did not start: port 80 is taken; its log is /x.log"
