"""Ids of jobs for a shell that completes a command line: what is found at once, and never an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import redis
from click.shell_completion import CompletionItem
from redis.backoff import NoBackoff
from redis.retry import Retry

from celeriac.common.contract.ids import TaskId
from celeriac.common.layers import ENVIRON, collect
from celeriac.common.substrate.keys import Keys
from celeriac.coordinator.servers import resolve_url
from celeriac.coordinator.words import brief

ANSWER_SECONDS = 0.5
"""Somebody has pressed Tab and waits."""
MOST = 20
"""The newest; more would fill the screen."""


def known_ids(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest jobs that begin so, with their titles."""
    try:
        return [item for item in _newest(ctx.params.get("redis_url")) if item.value.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a border: whatever it says would be typed into somebody's command line
        return []


def _newest(named: str | None) -> Iterator[CompletionItem]:
    leaves = collect({"redis.url": named}, cwd=Path.cwd(), environ=ENVIRON)
    url, prefix, home = (cast("str | None", leaves.get(key, ("", None))[1]) for key in _KEYS)
    keys = Keys(prefix or "")
    with redis.Redis.from_url(
        resolve_url(url, Path(home or "")),
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=True,
    ) as client:
        ids = [TaskId(f"s-{name}") for name in client.zrevrange(keys.by_time, 0, MOST - 1)]
        pipeline = client.pipeline(transaction=False)
        for task_id in ids:
            pipeline.hget(keys.task(task_id, "t"), "title")
        for task_id, title in zip(ids, pipeline.execute(), strict=True):
            yield CompletionItem(task_id, help=brief(title or "", 60))


_KEYS = ("redis.url", "redis.prefix", "home")
