"""How long to wait before a model is asked again. Pure (SPEC 5, Recovery)."""

import random

from celeriac.common.settings import RetrySettings


def delay(settings: RetrySettings, failed: int, retry_after: float | None) -> float:
    """Seconds after the failure number `failed` (from 1): `min(base * 2^n, max)` with n from 0, or what the server
    said; and up to `jitter` of it on top, so that a fleet does not come back in one moment."""
    doubled = settings.base_seconds * 2.0 ** min(failed - 1, 32)
    wait = min(doubled, settings.max_seconds) if retry_after is None else retry_after
    return wait * (1 + random.uniform(0, settings.jitter))  # noqa: S311 - no secret
