"""Which server a client talks to: flag > environment > settings > a live `celeriac up` > error (INTERFACES)."""

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

from celeriac.common.contract.errors import ServerUnreachable, UsageError

_SCHEMES = frozenset({"redis", "rediss", "unix"})
HOW_TO_START = (
    "start one with `docker compose up -d redis` or `redis-server` and name it with --redis-url or CELERIAC_REDIS_URL; "
    "`celeriac run PROMPT` starts its own"
)


def resolve_url(named: str | None, home: Path) -> str:
    """The URL that flags, environment or settings name, else that of a live `celeriac up` in the home.

    Raises UsageError for one that is no Redis URL, ServerUnreachable if nothing names one.
    """
    url = named or _url_of_live_up(home / "up.json")
    if url is None:
        raise ServerUnreachable(f"no server is known here: {HOW_TO_START}")
    if urlsplit(url).scheme not in _SCHEMES:
        raise UsageError(f"{shown(url)!r} is not a Redis URL; it begins with redis://, rediss:// or unix://")
    return url


def no_answer(url: str, why: BaseException | None = None) -> ServerUnreachable:
    """The error for a server that does not answer, with the way out."""
    reason = f" ({str(why).rstrip('.')})" if why is not None and str(why) else ""
    return ServerUnreachable(f"no server answers at {shown(url)}{reason}: {HOW_TO_START}")


def shown(url: str) -> str:
    """The URL without its credentials, for people and logs."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2] if separator else url.rpartition("@")[2]


def _url_of_live_up(file: Path) -> str | None:
    """What `celeriac up` wrote, as long as it lives; a file that cannot be read counts as none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    url, pid = document.get("url"), document.get("pid")
    return url if isinstance(url, str) and isinstance(pid, int) and _alive(pid) else None


def _alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
