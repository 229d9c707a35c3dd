"""Each seam of RunDeps is called at its event (INTERFACES, Seams), in the order of SPEC 5."""

from celeriac.common.contract.task import Usage
from celeriac.common.llm.client import Request, TooLarge, TooLong
from celeriac.common.policy.hooks import NOTHING, HookEvent, HookOutcome
from celeriac.common.runtime.state import LoopState
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, says, tool_use


class Spy:
    """Stands at every seam and notes when it is called."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def before_turn(self, state: LoopState) -> LoopState:
        self.seen.append("compactor.before_turn")
        return state

    async def on_too_long(self, state: LoopState, failure: TooLong | TooLarge) -> LoopState | None:
        self.seen.append("compactor.on_too_long")
        return None

    async def after_turn(self, state: LoopState, usage: Usage) -> LoopState:
        self.seen.append("compactor.after_turn")
        return state

    async def on_turn_end(self, state: LoopState) -> None:
        self.seen.append("memory.on_turn_end")

    async def reserve(self, request: Request) -> int:
        self.seen.append("budget.reserve")
        return request.max_tokens

    async def settle(self, request: Request, usage: Usage | None) -> None:
        self.seen.append("budget.settle")

    async def acquire(self, model: str, tokens: int) -> None:
        self.seen.append("governor.acquire")

    async def trigger(self, event: HookEvent) -> HookOutcome:
        self.seen.append(f"hooks.{event.name}")
        return NOTHING


async def test_each_seam_is_called_at_its_event(substrate: Substrate) -> None:
    spy = Spy()
    stage = Stage(
        substrate,
        [Probe("Read", changes=False)],
        compactor=spy,
        memory=spy,
        budget=spy,
        governor=spy,
        hooks=spy,
    )
    await stage.whole(Scripted([tool_use("t1", "Read", text="a")]), says("done"))
    asked = ["compactor.before_turn", "governor.acquire", "budget.reserve", "budget.settle"]
    # A call runs while its answer still streams, so its hooks may come before or after the settlement.
    tools = ["hooks.PreToolUse", "hooks.PostToolUse"]
    first, last = spy.seen[: spy.seen.index("compactor.after_turn")], spy.seen[spy.seen.index("compactor.after_turn") :]
    assert [name for name in first if name not in tools] == asked
    assert [name for name in first if name in tools] == tools
    assert last == ["compactor.after_turn", *asked, "compactor.after_turn", "hooks.Stop", "memory.on_turn_end"]


async def test_a_call_that_is_too_long_asks_the_compactor_once(substrate: Substrate) -> None:
    class Shrinks(Spy):
        async def on_too_long(self, state: LoopState, failure: TooLong | TooLarge) -> LoopState | None:
            assert isinstance(failure, TooLong)
            self.seen.append(f"too long: {failure.tokens} > {failure.limit}")
            return state

    spy = Shrinks()
    stage = Stage(substrate, [], compactor=spy)
    record, _, _ = await stage.whole(Scripted([], failure=TooLong(9, 5)), says("done"))
    assert record.outcome is not None and record.outcome.text == "done"
    again, _, _ = await stage.whole(Scripted([], failure=TooLong(9, 5)), Scripted([], failure=TooLong(8, 5)))
    assert again.outcome is not None and again.outcome.reason.startswith("prompt_too_long")
    assert spy.seen.count("too long: 9 > 5") == 2 and "too long: 8 > 5" not in spy.seen
