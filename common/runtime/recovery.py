"""What one turn does about its model calls: asks again, waits, changes the model, makes room, or gives up (SPEC 5,
Recovery)."""

from contextlib import suppress
from dataclasses import dataclass, replace

from celeriac.common.contract.events import SystemEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.llm.client import CallKey, ModelFailure, Overfull, Passing, Request, TooLarge, TooLong
from celeriac.common.llm.retry import delay
from celeriac.common.llm.waiting import Interrupted, pause
from celeriac.common.runtime.deps import RunDeps
from celeriac.common.runtime.executor import Executor
from celeriac.common.runtime.fallback import without_thinking
from celeriac.common.runtime.state import Step, Transition
from celeriac.common.runtime.stops import ParkRun
from celeriac.common.runtime.turn import Turn

ESCALATED_TOKENS = 64_000
"""What an answer may have that was cut at the first maximum, if the model and the window allow it (SPEC 5)."""
OUTPUT_MARGIN = 1_000
LEAST_OUTPUT = 3_000
"""Room for less output than that is no room: then the prompt is too long (SPEC 5)."""
WINDOW_FULL = "model_context_window_exceeded"


@dataclass(frozen=True, slots=True)
class Retry:
    """The call is worth asking again, so many seconds from now."""

    event: SystemEvent
    seconds: float


class WindowFull(TooLong):
    """The answer ran into the end of the window: what there is of it is complete, and nothing more would fit."""

    reason = WINDOW_FULL


class Recovery:
    """The attempts of one turn. The count of failures is the run's (`tally.tries`): a park does not reset it."""

    def __init__(self, deps: RunDeps, turn: Turn, executor: Executor) -> None:
        """Use one for one turn."""
        self._deps, self._turn, self._executor = deps, turn, executor
        self._asked = deps.tally.tries
        self._model = deps.switch.current.name
        self._fitted: int | None = None
        """The maximum output after the server has said what fits."""

    # ── the request ──────────────────────────────────────────────────────────────────────────────────────────

    def request(self) -> Request:
        """The next attempt."""
        deps, identity = self._deps, self._deps.identity
        self._asked += 1
        self._change_model()
        return Request(
            key=CallKey(identity.session, identity.path, identity.run, self._turn.number, self._asked),
            model=self._model,
            max_tokens=self._max_tokens(),
            system=deps.sections.render(),
            tools_wire=deps.toolbox.definitions(),
            messages=self._turn.state.messages,
            effort=deps.settings.effort,
            thinking=deps.settings.thinking,
            joined=deps.joined,
        )

    def _change_model(self) -> None:
        name = self._deps.switch.current.name
        if name != self._deps.tally.model:
            if self._deps.tally.model is not None:
                state = self._turn.state
                self._turn.state = replace(state, messages=without_thinking(state.messages))
            self._deps.tally.model = name
        self._model = name

    def _max_tokens(self) -> int:
        if self._fitted is not None:
            return self._fitted
        raised = self._raised
        return raised if self._turn.state.transition is Transition.OUTPUT_ESCALATED or self._continues else self._first

    @property
    def _first(self) -> int:
        return min(self._deps.settings.max_tokens, self._deps.switch.current.max_output)

    @property
    def _raised(self) -> int:
        facts = self._deps.switch.current
        room = facts.window - self._deps.tally.prompt_tokens - OUTPUT_MARGIN
        return max(self._first, min(ESCALATED_TOKENS, facts.max_output, room))

    @property
    def _continues(self) -> bool:
        return self._turn.state.max_output_tokens_recovery_count > 0

    # ── what came of it ──────────────────────────────────────────────────────────────────────────────────────

    async def answered(self) -> bool:
        """The call did not fail; whether the same is to be asked again with more room for its answer."""
        turn, executor = self._turn, self._executor
        if turn.halt is not None or self._deps.cancel.aborted:
            return False
        self._deps.tally.tries = 0
        self._deps.switch.answered()
        if executor.has_effect:
            return False
        if turn.stop_reason == WINDOW_FULL:
            facts = self._deps.switch.current
            turn.failure = WindowFull(facts.window, facts.window)
            return await self._made_room(turn.failure)
        if turn.stop_reason != "max_tokens" or self._max_tokens() >= self._raised or self._fitted is not None:
            return False
        await executor.discard()
        turn.state = replace(turn.state, transition=Transition.OUTPUT_ESCALATED)
        turn.stop_reason = None
        return True

    async def failed(self, failure: ModelFailure) -> Retry | None:
        """The call failed; how it is asked again, None: the turn has failed, or what there is of the
        answer stands. With `turn.halt` the wait is too long for a slot."""
        turn = self._turn
        if self._executor.has_effect or self._deps.cancel.aborted:
            self._deps.tally.tries = 0
            return None
        await self._executor.discard()
        turn.failure = failure
        if isinstance(failure, Passing):
            return self._retry(failure)
        if not self._fits(failure) and not await self._made_room(failure):
            return None
        return self._again(failure)

    def _fits(self, failure: ModelFailure) -> bool:
        """Whether a smaller answer does (400 of input and max_tokens together)."""
        if not isinstance(failure, Overfull):
            return False
        room = failure.window - failure.tokens - OUTPUT_MARGIN
        if room < LEAST_OUTPUT or (self._fitted is not None and room >= self._fitted):
            return False
        self._fitted = room
        return True

    async def _made_room(self, failure: ModelFailure) -> bool:
        """Reactive compaction, once per turn (event 4): whether the call is worth asking again."""
        turn = self._turn
        if isinstance(failure, Overfull):
            failure = TooLong(failure.tokens, failure.window)
        if not isinstance(failure, TooLong | TooLarge) or turn.state.has_attempted_reactive_compact:
            return False
        self._deps.observe(Step.REACTIVE_COMPACTION)
        smaller = await self._deps.compactor.on_too_long(turn.state, failure)
        if smaller is None:
            return False
        await self._executor.discard()
        turn.state = replace(smaller, has_attempted_reactive_compact=True, transition=Transition.REACTIVE_RETRY)
        return True

    def _retry(self, failure: Passing) -> Retry | None:
        deps, retry = self._deps, self._deps.settings.retry
        deps.tally.tries += 1
        if deps.tally.tries >= retry.attempts:
            return None
        if deps.switch.failed(failure):
            return self._again(failure)
        wait = delay(retry, deps.tally.tries, failure.retry_after)
        if wait > retry.park_after_seconds:
            self._turn.halt = ParkRun(wait, "retry", deps.tally.tries)
        return self._again(failure, wait)

    def _again(self, failure: ModelFailure, wait: float = 0.0) -> Retry:
        identity, retry = self._deps.identity, self._deps.settings.retry
        data: JsonObject = {
            "attempt": self._deps.tally.tries,
            "max_retries": retry.attempts - 1,
            "retry_delay_ms": round(wait * 1000),
            "error": failure.reason,
            "message": str(failure),
            "model": self._deps.switch.current.name,
            "parked": self._turn.halt is not None,
        }
        event = SystemEvent(
            session_id=identity.session,
            task_id=identity.task_id,
            parent_task_id=identity.parent,
            worker=identity.worker,
            run=identity.run,
            subtype="api_retry",
            data=data,
        )
        return Retry(event, wait)

    async def waited(self, retry: Retry) -> bool:
        """Let the time pass; an abort ends it at once. False: the run is parked instead."""
        if self._turn.halt is not None:
            return False
        with suppress(Interrupted):
            await pause(self._deps.cancel, retry.seconds)
        return True
