"""The substrate that the settings name."""

from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.settings import Settings
from celeriac.common.substrate.leases import Terms
from celeriac.common.substrate.store import Substrate


def open_substrate(settings: Settings) -> Substrate:
    """Prepare for the server of these settings; no I/O. Raises ServerUnreachable if none is named."""
    if settings.redis.url is None:
        raise ServerUnreachable("no server is named: give --redis-url URL or set CELERIAC_REDIS_URL")
    return Substrate.connect(settings.redis.url, prefix=settings.redis.prefix, terms=terms_of(settings))


def terms_of(settings: Settings) -> Terms:
    """How long leases are, how often one may be lost, and what counts as a silence."""
    return Terms(
        lease_ms=round(settings.lease.seconds * 1000),
        max_attempts=settings.supervisor.max_attempts,
        max_attempts_total=settings.supervisor.max_attempts_total,
        silent_ms=round(settings.lease.silent_seconds * 1000),
    )
