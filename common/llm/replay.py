"""A model that answers from a replay file: how a whole distributed job runs without a key (DESIGN, replay)."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from celeriac.common.contract.json import JsonObject
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm.accumulate import Accumulator
from celeriac.common.llm.client import (
    ApiMessage,
    BrokenStream,
    ModelEvent,
    ModelFailure,
    Overloaded,
    RateLimited,
    Request,
    ServerFailed,
)
from celeriac.common.llm.fingerprint import fingerprint
from celeriac.common.llm.ordering import in_order
from celeriac.common.llm.playback import Cast, Playback, check_request, names_tasks, play
from celeriac.common.llm.script import CallId, Fault, Job, Script, parse_script
from celeriac.common.llm.waiting import Interrupted, pause, unless_aborted

__all__ = ["Job", "MemoryLedger", "ReplayLedger", "ReplayModel", "Script", "fingerprint", "parse_script"]


class ReplayLedger(Protocol):
    """Counts what one session has asked; durable, so that attempts go on counting after a takeover."""

    async def next_attempt(self, path: str, run: int, turn: int) -> int:
        """Count one more attempt of this call; 1 for the first."""
        ...

    async def attempts(self) -> Mapping[tuple[str, int, int], int]:
        """All calls asked so far."""
        ...


class MemoryLedger:
    """A ledger that lasts as long as its process."""

    def __init__(self) -> None:
        """Nothing asked."""
        self._counts: dict[tuple[str, int, int], int] = {}

    async def next_attempt(self, path: str, run: int, turn: int) -> int:
        """Count one more attempt of this call; 1 for the first."""
        count = self._counts[path, run, turn] = self._counts.get((path, run, turn), 0) + 1
        return count

    async def attempts(self) -> Mapping[tuple[str, int, int], int]:
        """All calls asked so far."""
        return dict(self._counts)


class ReplayModel:
    """A ModelClient whose answers, faults and pace come from a script."""

    def __init__(self, script: Script, ledger: ReplayLedger, *, raw: bool = False) -> None:
        """`raw`: also yield every event as it would have come."""
        self._script = script
        self._ledger = ledger
        self._raw = raw

    async def stream(self, request: Request, cancel: AbortNode) -> AsyncGenerator[ModelEvent, None]:
        """Answer from the script. Raises ReplayFailed, or the failure that the script orders."""
        try:
            playback = await unless_aborted(cancel, self._playback(request))
            accumulator = Accumulator(raw=self._raw)
            for event in playback.events:
                await pause(cancel, 0 if event is playback.events[0] else playback.pace_seconds)
                for out in accumulator.feed(event.name, event.data):
                    yield out
        except Interrupted:
            return
        if playback.fault is not None:
            raise _failure(playback.fault, accumulator)
        accumulator.close()

    async def _playback(self, request: Request) -> Playback:
        key = request.key
        call = CallId(key.path, key.run, key.turn)
        attempt = await self._ledger.next_attempt(*call)
        line = self._script.line(call, attempt)
        check_request(line, call, [_as_json(message) for message in request.messages])
        await in_order(line, call, self._ledger.attempts)
        cast = Cast(self._script, key.session, await self._ledger.attempts()) if names_tasks(line) else None
        return play(line, call, attempt, request.model, cast)


def _as_json(message: ApiMessage) -> JsonObject:
    return {"role": message.role, "content": list(message.content)}


def _failure(fault: Fault, accumulator: Accumulator) -> ModelFailure:
    """What a client would have made of this fault."""
    match fault.kind:
        case "429":
            return RateLimited("the script answers 429", fault.retry_after)
        case "529":
            return Overloaded("the script answers 529", fault.retry_after)
        case "500":
            return ServerFailed("the script answers 500")
        case "error":
            return accumulator.failure({"error": {"type": fault.error_type, "message": "from the script"}})
        case "clean_end" | "reset" | "stall" as kind:
            return BrokenStream(accumulator.after, _BREAKS[kind])


_BREAKS = {
    "clean_end": "the stream ended without message_stop",
    "reset": "the connection was reset",
    "stall": "nothing came any more",
}
