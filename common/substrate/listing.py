"""The list of sessions for people: a page of it with a few fields of each record, and nothing else loaded.

Reads the keys of `sessions` and `records` without their read model: loading that costs more than the whole command.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import redis

from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.substrate.keys import Keys

SOCKET_TIMEOUT_SECONDS = 5.0
_FIELDS = ("state", "run", "title", "asked", "park", "created_at", "ended_at")


@dataclass(frozen=True, slots=True)
class Listed:
    """One session in the list; times are epoch milliseconds of the server, 0 = not yet."""

    session_id: TaskId
    state: str
    run: int
    title: str
    waiting_human: bool
    """A question of it waits for an answer."""
    created_at: int
    ended_at: int


@dataclass(frozen=True, slots=True)
class Page:
    """Sessions, newest first, and the server's time in epoch milliseconds."""

    sessions: tuple[Listed, ...]
    now_ms: int


def read_page(url: str, *, prefix: str, offset: int, count: int) -> Page:
    """Read one page; entries without a record are skipped. Raises ServerUnreachable."""
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
    listed = (_listed(task_id, row) for task_id, row in zip(found, rows, strict=True) if row[0] is not None)
    return Page(tuple(listed), int(now[0]) * 1000 + int(now[1]) // 1000)


def _listed(task_id: TaskId, row: Sequence[bytes | None]) -> Listed:
    state, run, title, asked, park, created, ended = ((value or b"").decode() for value in row)
    waiting = asked == "1" and bool(park)
    return Listed(task_id, state, int(run or 0), title, waiting, int(created or 0), int(ended or 0))
