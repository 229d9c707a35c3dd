"""The clean-up registry (SPEC 9): last registered, first run; one failure never stops the rest."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

CLEANUP_GRACE_SECONDS = 5.0
"""How long one clean-up may take; a stuck one must not hold up the others or a deploy."""

log = logging.getLogger(__name__)


class CleanupRegistry:
    """Clean-ups by key; registering a key twice keeps one."""

    def __init__(self) -> None:
        """Empty."""
        self._entries: dict[str, Callable[[], Awaitable[None]]] = {}

    def register(self, key: str, clean_up: Callable[[], Awaitable[None]]) -> None:
        """Have `clean_up` run at the end; the same key again replaces it."""
        self._entries[key] = clean_up

    def forget(self, key: str) -> None:
        """Take a registration back; unknown keys are fine."""
        self._entries.pop(key, None)

    async def run(self) -> None:
        """Run all, newest first, each bounded by CLEANUP_GRACE_SECONDS; failures are logged. A cancellation that
        arrives meanwhile takes effect when all have run."""
        cancelled: asyncio.CancelledError | None = None
        while self._entries:
            key, clean_up = self._entries.popitem()
            try:
                async with asyncio.timeout(CLEANUP_GRACE_SECONDS):
                    await clean_up()
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception:
                log.exception("clean-up %s failed", key)
        if cancelled is not None:
            raise cancelled
