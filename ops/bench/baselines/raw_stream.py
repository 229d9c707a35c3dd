"""XADD until a blocked XREAD has the entry: the quickest way from one process's write to another's knowledge."""

import asyncio
import time

from redis.asyncio import Redis

BLOCKED_SECONDS = 0.002
"""Until the reader's command has reached the server."""


class RawStream:
    """Two connections to one server."""

    def __init__(self, url: str) -> None:
        """No I/O."""
        self._writer = Redis.from_url(url)
        self._reader = Redis.from_url(url, socket_timeout=None)

    async def sample(self) -> float:
        """Seconds from XADD until the blocked XREAD has it."""
        reading = asyncio.ensure_future(self._reader.xread({"raw": "$"}, block=5000))
        await asyncio.sleep(BLOCKED_SECONDS)
        started = time.perf_counter()
        await self._writer.xadd("raw", {"x": "1"}, maxlen=1)
        await reading
        return time.perf_counter() - started

    async def aclose(self) -> None:
        """Close both."""
        await self._writer.aclose()
        await self._reader.aclose()
