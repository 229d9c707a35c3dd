"""Which server a client talks to: flag > environment > settings > a live `celeriac up` > error (INTERFACES)."""

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from celeriac.common.contract.errors import ServerUnreachable, UsageError

RUN_FILE = "up.json"
"""In the home: {url, pid, started, birth} of a live `celeriac up`."""
_SCHEMES = frozenset({"redis", "rediss", "unix"})
HOW_TO_START = (
    "start one with `celeriac up`, or name yours with --redis-url or CELERIAC_REDIS_URL; "
    "`celeriac run PROMPT` starts its own"
)


def resolve_url(named: str | None, home: Path) -> str:
    """The URL that flags, environment or settings name, else that of a live `celeriac up` in the home.

    Raises UsageError for one that is no Redis URL, ServerUnreachable if nothing names one.
    """
    up = None if named else live_up(home)
    url = named or (up.url if up is not None else None)
    if not url:
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


@dataclass(frozen=True, slots=True)
class LiveUp:
    """A `celeriac up` that runs on this machine."""

    url: str
    """Of its server."""
    pid: int


def live_up(home: Path) -> LiveUp | None:
    """What `celeriac up` wrote into the home, as long as it lives; a file that cannot be read counts as none."""
    try:
        document = json.loads((home / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    url, pid, birth = (document.get(name) for name in ("url", "pid", "birth"))
    if not isinstance(url, str) or not isinstance(pid, int):
        return None
    found = birth_of(pid)
    return LiveUp(url, pid) if found is not None and birth in {None, found} else None


def birth_of(pid: int) -> str | None:
    """What tells a process from a later one with the same number: the boot, and the clock ticks from it to the start.

    None if no such process runs (a zombie does not).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # from the third of proc(5) on; the name before may hold anything
    return None if fields[0] in {"Z", "X"} else f"{boot}:{fields[19]}"
