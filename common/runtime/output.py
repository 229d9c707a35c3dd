"""Live output of one run: pieces are gathered for a moment and sent in one call, so that streaming never waits for
the substrate."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.text import clean_text

GATHER_SECONDS = 0.1
"""How long pieces are gathered: quick for an eye, ten calls a second at most for the server."""

ACTIVITIES_KEPT = 5
"""The ring of recent activities (SPEC 2)."""


class Emitter(Protocol):
    """The owner's `emit`. Implementation: `substrate.leases.Lease`."""

    async def emit(
        self,
        *,
        chunks: Sequence[str] = (),
        activities: Sequence[str] | None = None,
        token_at: bool = False,
        tool_at: bool = False,
        event: JsonObject | None = None,
    ) -> object:
        """Write output, the ring of activities, the times of the last progress, one event for followers."""
        ...


class LiveOutput:
    """Implements `deps.Output` over an Emitter."""

    def __init__(self, emitter: Emitter, activities: Sequence[str] = ()) -> None:
        """`activities`: the ring so far."""
        self._emitter = emitter
        self._ring = list(activities)[-ACTIVITIES_KEPT:]
        self._chunks: list[str] = []
        self._notices: list[JsonObject] = []
        self._acted = False
        """Whether the ring has changed."""
        self._token_heard = False
        self._tool_heard = False
        self._ready = asyncio.Event()

    def text(self, chunk: str) -> None:
        """Buffer a piece of the answer."""
        self._chunks.append(clean_text(chunk))
        self.heard()

    def printed(self, chunk: str) -> None:
        """Buffer a piece of a tool's output."""
        self._chunks.append(clean_text(chunk))
        self._tool_heard = True
        self._ready.set()

    def heard(self) -> None:
        """Have the time of the last token written."""
        self._token_heard = True
        self._ready.set()

    def activity(self, line: str) -> None:
        """Put a line into the ring."""
        self._ring = [*self._ring, clean_text(line)][-ACTIVITIES_KEPT:]
        self._acted = self._tool_heard = True
        self._ready.set()

    def notice(self, subtype: str, data: JsonObject) -> None:
        """Buffer a system event."""
        self._notices.append({"type": "system", "subtype": subtype, "data": data})
        self._ready.set()

    async def flush(self) -> None:
        """Send what is buffered. A lost lease is left to those who act on it."""
        self._ready.clear()
        notices, self._notices = self._notices, []
        with contextlib.suppress(LeaseLost):
            for notice in notices:
                await self._emitter.emit(event=notice)
            await self._flush_output()

    async def _flush_output(self) -> None:
        chunks, self._chunks = self._chunks, []
        acted, self._acted = self._acted, False
        token, self._token_heard = self._token_heard, False
        tool, self._tool_heard = self._tool_heard, False
        if token or tool:
            await self._emitter.emit(
                chunks=["".join(chunks)] if chunks else (),
                activities=self._ring if acted else None,
                token_at=token,
                tool_at=tool,
            )

    async def run(self) -> None:
        """Flush whenever there is something, until cancelled."""
        while True:
            await self._ready.wait()
            await asyncio.sleep(GATHER_SECONDS)
            await self.flush()
