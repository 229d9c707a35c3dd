"""Which model a run asks: its own, or another while its own is overloaded (SPEC 5, Recovery). No I/O."""

import time
from collections.abc import Callable

from celeriac.common.contract.models import NamedModel
from celeriac.common.llm.client import ApiMessage, ModelFailure, Overloaded

OVERLOADS = 3
"""So many 529 in a row, then the fallback is asked."""
_THINKING = frozenset({"thinking", "redacted_thinking"})


class Switch:
    """Counts the overloads of one run."""

    def __init__(
        self,
        first: NamedModel,
        fallback: NamedModel | None = None,
        cooldown: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cooldown`: seconds after which the first model is asked again."""
        self._first = first
        self._fallback = fallback if fallback is not None and fallback.name != first.name else None
        self._cooldown = cooldown
        self._clock = clock
        self._in_row = 0
        self._until: float | None = None

    @property
    def current(self) -> NamedModel:
        """The model to ask now."""
        if self._fallback is None or self._until is None:
            return self._first
        if self._clock() < self._until:
            return self._fallback
        self._until = None
        return self._first

    def failed(self, failure: ModelFailure) -> bool:
        """Count a failure of the current model; whether the fallback takes over from here."""
        self._in_row = self._in_row + 1 if isinstance(failure, Overloaded) else 0
        if self._fallback is None or self._until is not None or self._in_row < OVERLOADS:
            return False
        self._in_row = 0
        self._until = self._clock() + self._cooldown
        return True

    def answered(self) -> None:
        """An answer came: what is overloaded now is not so in a row."""
        self._in_row = 0


def without_thinking(messages: tuple[ApiMessage, ...]) -> tuple[ApiMessage, ...]:
    """The history for another model: thinking is signed for the model that thought it. A message without any stays the
    same object, so that what is joined of it stays valid."""
    return tuple(_unthought(message) for message in messages)


def _unthought(message: ApiMessage) -> ApiMessage:
    kept = tuple(block for block in message.content if block.get("type") not in _THINKING)
    return message if len(kept) == len(message.content) else ApiMessage.of(message.role, kept)
