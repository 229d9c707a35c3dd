"""How a task is heard of: derived from its record and the server's time, never stored (SPEC 2, DESIGN 3).

Loads nothing, so that `list` may use it.
"""

from dataclasses import dataclass
from enum import StrEnum

SILENT_SECONDS = 60.0
"""No token and no tool output for so long is a silence (issue A2)."""


class Presence(StrEnum):
    """What people and programs are told of a run that has not ended and has been claimed."""

    ALIVE = "alive"
    SILENT = "silent"
    """Its owner renews the lease, but no token and no tool output came for SILENT_SECONDS."""
    PARKED = "parked"
    WAITING_HUMAN = "waiting_human"
    LOST = "lost"
    """The lease has expired and nobody has claimed the task yet."""


@dataclass(frozen=True, slots=True)
class Signs:
    """The fields of a record that tell; times are the server's, in epoch milliseconds, 0 = never."""

    terminal: bool
    owned: bool
    lease_until: int
    park: str
    """As in PROTOCOL 2: empty, `time`, `inbox` or `answer:QID`."""
    park_at: int
    asked: bool
    open_children: int
    progress_at: int
    """The newest of: claim, token, tool output."""


def presence_of(signs: Signs, *, now_ms: int, silent_ms: int) -> Presence | None:
    """How the run is heard of at `now_ms`; None for one that has ended, or waits in a queue for its next owner."""
    if signs.terminal:
        return None
    if signs.owned:
        return _of_owned(signs, now_ms, silent_ms)
    if signs.park.startswith("answer:") or (signs.park == "inbox" and signs.asked):
        return Presence.WAITING_HUMAN
    due = signs.park == "time" and signs.park_at <= now_ms
    return Presence.PARKED if signs.park and not due else None


def _of_owned(signs: Signs, now_ms: int, silent_ms: int) -> Presence:
    if signs.lease_until <= now_ms:
        return Presence.LOST
    # One that waits for its children is heard of through them.
    quiet = not signs.open_children and now_ms - signs.progress_at >= silent_ms
    return Presence.SILENT if quiet else Presence.ALIVE
