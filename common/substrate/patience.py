"""Patience with a server that does not answer: how long, and who is told. Knows neither redis-py nor asyncio.

`list` uses it without loading either; `connection` uses it for everything else.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""How long requests that own no lease repeat themselves: a Redis restart takes less (CELERY.md: 4-5 s)."""
CLIENT_PATIENCE_SECONDS = 30.0
"""How long a client waits for a server that it has met: a restart that loads gigabytes, or a person who restarts it."""
FIRST_PATIENCE_SECONDS = 5.0
"""How long a client waits at its first connect. A server that restarts refuses as one that never ran does; a restart
takes 4-5 s (CELERY.md), and nobody should wait half a minute for a misspelt address."""
TELL_AFTER_SECONDS = 0.5
"""A shorter outage is not told: one that only cut the connections is over before anybody could read of it."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


def backoff() -> Iterator[float]:
    """Pauses in seconds, doubling up to half a second."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def log_it(text: str) -> None:
    """What a program does that does not say where to tell it."""
    logger.warning(text)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one connection's requests wait for an answer, and where that is told."""

    seconds: float = PATIENCE_SECONDS
    tell: Callable[[str], None] = log_it
    """Given one line when an outage has begun and one when it is over. Called in the loop: must not block."""


PROCESS = Patience()
"""That of a coordinator or worker: it goes on asking by itself, so one request need not wait long."""


class Outage:
    """Whether the server answers, as all requests of one connection see it together: each outage is told once."""

    def __init__(self, where: str, tell: Callable[[str], None]) -> None:
        """`where`: the address, without credentials."""
        self.count = 0
        """Outages that have begun so far."""
        self.met = False
        """Whether it has ever answered."""
        self._where = where
        self._tell = tell
        self._since: float | None = None
        self._told = False

    def missed(self, *, waited: float, patience: float) -> None:
        """An attempt got no answer after `waited` seconds; attempts go on for `patience` seconds."""
        now = time.monotonic()
        if self._since is None:
            self._since = now - waited
            self.count += 1
        if not self._told and now - self._since >= TELL_AFTER_SECONDS:
            self._told = True
            self._tell(f"the server at {self._where} does not answer; waiting up to {patience:.0f} s …")

    def answered(self) -> None:
        """An attempt got an answer."""
        self.met = True
        if self._told:
            self._tell("the server is back")
        self._since, self._told = None, False


def wait_for(attempt: Callable[[], T], outage: Outage, *, broken: tuple[type[Exception], ...], seconds: float) -> T:
    """Repeat a blocking `attempt` while it raises one of `broken`; the last of them is raised after `seconds`."""
    end = time.monotonic() + seconds
    pauses = backoff()
    while True:
        begun = time.monotonic()
        try:
            answer = attempt()
        except broken:
            if time.monotonic() >= end:
                raise
            outage.missed(waited=time.monotonic() - begun, patience=seconds)
            time.sleep(next(pauses))
        else:
            outage.answered()
            return answer
