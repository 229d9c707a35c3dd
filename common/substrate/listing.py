"""The list of sessions for people: a page of it with a few fields of each record, and nothing else loaded.

Reads the keys of `sessions` and `records` without their read model: loading that costs more than the whole command.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import redis

from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.presence import Presence, Signs, presence_of
from celeriac.common.substrate.keys import Keys

SOCKET_TIMEOUT_SECONDS = 5.0
TERMINAL = frozenset({"completed", "failed", "stopped"})
"""As in contract.task, which loads pydantic."""
_SIGNS = ("owner", "asked", "park", "lease_until", "park_at", "open_children", "claimed_at", "token_at", "tool_at")
_FIELDS = ("state", "run", "title", "created_at", "ended_at", *_SIGNS)


@dataclass(frozen=True, slots=True)
class Listed:
    """One session in the list; times are epoch milliseconds of the server, 0 = not yet."""

    session_id: TaskId
    state: str
    run: int
    title: str
    presence: Presence | None
    """How it is heard of; None: it has ended, or waits for a coordinator."""
    created_at: int
    ended_at: int


@dataclass(frozen=True, slots=True)
class Page:
    """Sessions, newest first, and the server's time in epoch milliseconds."""

    sessions: tuple[Listed, ...]
    now_ms: int


def read_page(url: str, *, prefix: str, offset: int, count: int, silent_ms: int) -> Page:
    """Read one page; entries without a record are skipped. `silent_ms`: what counts as a silence.

    Raises ServerUnreachable."""
    keys = Keys(prefix)
    try:
        with redis.Redis.from_url(url, socket_timeout=SOCKET_TIMEOUT_SECONDS, protocol=2) as client:
            names = cast("Sequence[bytes]", client.zrevrange(keys.by_time, offset, offset + count - 1))
            found = [TaskId(f"s-{name.decode()}") for name in names]
            pipeline = client.pipeline(transaction=False)
            for task_id in found:
                pipeline.hmget(keys.task(task_id, "t"), _FIELDS)
            pipeline.time()
            *rows, now = pipeline.execute()
    except (redis.RedisError, OSError) as error:
        raise ServerUnreachable(f"the server does not answer: {error}") from error
    now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    known = ((task_id, row) for task_id, row in zip(found, rows, strict=True) if row[0] is not None)
    return Page(tuple(_listed(task_id, row, now_ms, silent_ms) for task_id, row in known), now_ms)


def _listed(task_id: TaskId, row: Sequence[bytes | None], now_ms: int, silent_ms: int) -> Listed:
    state, run, title, created, ended, *signs = ((value or b"").decode() for value in row)
    presence = presence_of(_signs(state, signs), now_ms=now_ms, silent_ms=silent_ms)
    return Listed(task_id, state, int(run or 0), title, presence, int(created or 0), int(ended or 0))


def _signs(state: str, values: Sequence[str]) -> Signs:
    owner, asked, park, *numbers = values
    lease_until, park_at, open_children, *progress = (int(number or 0) for number in numbers)
    return Signs(
        terminal=state in TERMINAL,
        owned=bool(owner),
        lease_until=lease_until,
        park=park,
        park_at=park_at,
        asked=asked == "1",
        open_children=open_children,
        progress_at=max(progress),
    )
