"""The abort tree: a stop sinks to every descendant, never upward, never sideways (SPEC 9)."""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from weakref import WeakSet

log = logging.getLogger(__name__)


class AbortReason(StrEnum):
    """Why work is aborted (SPEC 5, event 9)."""

    INTERRUPT = "interrupt"
    USER = "user"
    PARENT = "parent"
    TIME_LIMIT = "time_limit"
    BUDGET = "budget"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"


class AbortNode:
    """One node. The first abort decides the reason; later ones change nothing."""

    def __init__(self) -> None:
        """A root; children are made with `child`."""
        self.reason: AbortReason | None = None
        self._event = asyncio.Event()
        self._children: WeakSet[AbortNode] = WeakSet()
        self._callbacks: list[Callable[[AbortReason], None]] = []

    def child(self) -> "AbortNode":
        """A node below this one; born aborted if this one is."""
        node = AbortNode()
        self._children.add(node)
        if self.reason is not None:
            node.abort(self.reason)
        return node

    def abort(self, reason: AbortReason) -> None:
        """Abort this node and everything below it. Synchronous: the callbacks may only start something."""
        if self.reason is not None:
            return
        self.reason = reason
        self._event.set()
        for callback in tuple(self._callbacks):
            try:
                callback(reason)
            except Exception:  # a border: one failure must not keep the abort from whatever else is below
                log.exception("a callback of an abort failed")
        for node in tuple(self._children):
            node.abort(reason)

    def on_abort(self, callback: Callable[[AbortReason], None]) -> Callable[[], None]:
        """Call back once on abort (at once if it has happened); returns the function that takes this back."""
        if self.reason is not None:
            callback(self.reason)
            return lambda: None
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    @property
    def aborted(self) -> bool:
        """Whether an abort has reached this node."""
        return self.reason is not None

    async def wait(self) -> AbortReason:
        """Wait for the abort and return its reason."""
        await self._event.wait()
        assert self.reason is not None
        return self.reason
