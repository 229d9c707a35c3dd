"""Checks of the server: that it answers, how safe it keeps things, its clock, and who works on it."""

import time
from collections.abc import Iterator, Mapping
from typing import cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celeriac.common.contract.ids import TaskId
from celeriac.common.queue.celery_app import make_app
from celeriac.common.substrate.embedded import OLDEST_MAJOR
from celeriac.common.substrate.keys import Keys
from celeriac.coordinator.servers import HOW_TO_START, shown
from celeriac.ops.doctor.check import Check, fail, ok, warn

SERVER = "server"
"""Name of the check that everything else here hangs on; its failure alone has an exit code of its own."""
ANSWER_SECONDS = 3.0
SKEW_SECONDS = 1.0
"""Leases are judged by the server's clock and renewed by the local one; people compare the times of both."""
PING_SECONDS = 1.0
"""How long workers and coordinators may take to answer."""
_LOOK_SECONDS = 0.02
_NOBODY = TaskId("s-doctor0000000")
"""A session that never exists: a coordinator takes the hint off the list and finds nothing to do."""

Info = Mapping[str, object]


def server(url: str, prefix: str) -> Iterator[Check]:
    """Everything about the server at `url`; one line if it does not answer."""
    with redis.Redis.from_url(
        url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    ) as client:
        try:
            info = cast("Info", client.info())
        except (redis.RedisError, OSError) as error:
            yield fail(SERVER, f"no answer from {shown(url)} ({error})", HOW_TO_START)
            return
        yield ok(SERVER, f"answers at {shown(url)}")
        yield version(info)
        settings = _settings(client)
        yield persistence(info, settings)
        yield memory(info, settings)
        yield clock(client)
        yield coordinators(client, Keys(prefix))
    yield workers(url, prefix)


def version(info: Info) -> Check:
    """New enough."""
    name, number = "server version", str(info.get("redis_version", "0"))
    if int(number.partition(".")[0]) < OLDEST_MAJOR:
        return fail(name, f"{number} is too old", f"upgrade it: {OLDEST_MAJOR}.0 is the oldest that works")
    return ok(name, f"{info.get('server_name', 'redis')} {info.get('valkey_version', number)}")


def _settings(client: redis.Redis) -> Mapping[str, str]:
    """What of its configuration matters; empty where a hosted server tells nobody."""
    try:
        return cast("Mapping[str, str]", client.config_get("appendfsync", "maxmemory-policy", "save"))
    except redis.ResponseError:
        return {}


def persistence(info: Info, settings: Mapping[str, str]) -> Check:
    """What may be lost, and when."""
    name = "persistence"
    if str(info.get("aof_last_write_status", "ok")) != "ok":
        return fail(name, "the last write of the append-only file failed", "look at the server's disk and log")
    if not int(str(info.get("aof_enabled", 0))):
        snapshots = "what came after the last snapshot" if settings.get("save") else "everything"
        remedy = "set appendonly yes in the server's configuration"
        return warn(name, f"appendonly no: a restart loses {snapshots}", remedy)
    fsync = settings.get("appendfsync")
    if fsync == "always":
        return ok(name, "appendonly yes, appendfsync always: nothing that was answered is lost")
    if fsync == "everysec":
        lost = "a crash of the machine, or of the server while its disk is slow, may lose the last 2 seconds"
        return ok(name, f"appendonly yes, appendfsync everysec: {lost}")
    if fsync is None:
        return ok(name, "appendonly yes; appendfsync cannot be read here")
    return warn(
        name, f"appendonly yes, appendfsync {fsync}: a crash of the machine may lose 30 s", "set it to everysec"
    )


def memory(info: Info, settings: Mapping[str, str]) -> Check:
    """Nothing is thrown away when memory is short."""
    name, policy = "memory", settings.get("maxmemory-policy", str(info.get("maxmemory_policy", "")))
    limit = int(str(info.get("maxmemory", 0)))
    if policy == "noeviction":
        return ok(name, "maxmemory-policy noeviction")
    remedy = "set maxmemory-policy noeviction"
    if not policy:
        return warn(name, "maxmemory-policy cannot be read", remedy)
    if limit:
        return fail(name, f"maxmemory-policy {policy}: jobs vanish when memory is short", remedy)
    return warn(name, f"maxmemory-policy {policy}, without a limit so far", remedy)


def clock(client: redis.Redis) -> Check:
    """Ours against the server's."""
    before = time.time()
    seconds, microseconds = client.time()
    between = (before + time.time()) / 2
    skew = between - (seconds + microseconds / 1e6)
    if abs(skew) > SKEW_SECONDS:
        return warn(
            "clock", f"{skew:+.1f} s from the server's", "run a time service (chrony, systemd-timesyncd) on both"
        )
    return ok("clock", f"{skew * 1000:+.0f} ms from the server's")


def coordinators(client: redis.Redis, keys: Keys) -> Check:
    """Somebody takes hints about sessions: asked by one that means nothing, and taken back if nobody does."""
    client.rpush(keys.session_hints, _NOBODY)
    deadline = time.monotonic() + PING_SECONDS
    while client.lpos(keys.session_hints, _NOBODY) is not None:
        if time.monotonic() > deadline:
            client.lrem(keys.session_hints, 0, _NOBODY)
            remedy = "start one: `celeriac coordinator` (or all: `celeriac up`)"
            return warn("coordinators", f"none took a hint within {PING_SECONDS:.0f} s", remedy)
        time.sleep(_LOOK_SECONDS)
    return ok("coordinators", "one answers")


def workers(url: str, prefix: str) -> Check:
    """Those that answer Celery's ping."""
    with make_app(url, prefix) as app:
        names = sorted(name for answer in app.control.ping(timeout=PING_SECONDS) for name in answer)
    if not names:
        remedy = "start one: `celeriac worker` (or all: `celeriac up`)"
        return warn("workers", f"none answered within {PING_SECONDS:.0f} s", remedy)
    return ok("workers", f"{len(names)}: {', '.join(names)}")
