"""The stand-in's log: JSON lines that another process may read while they are written. Each is one write."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import orjson

from celeriac.common.contract.json import JsonObject

ENTRIES_KEPT = 10_000
"""In memory; the file has all."""


class Journal:
    """Appends lines to a file, if there is one, and keeps the latest for whoever is in the same process."""

    def __init__(self, path: Path | None) -> None:
        """Open the file for appending."""
        self.entries: deque[JsonObject] = deque(maxlen=ENTRIES_KEPT)
        """What was written last."""
        self._changed = asyncio.Event()
        self._descriptor = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, entry: JsonObject) -> None:
        """Add a line, stamped with the time in epoch seconds."""
        stamped: JsonObject = {"at": round(time.time(), 3), **entry}
        self.entries.append(stamped)
        self._changed.set()
        if self._descriptor is not None:
            os.write(self._descriptor, orjson.dumps(stamped) + b"\n")

    async def wait_for(self, wanted: Callable[[JsonObject], bool]) -> JsonObject:
        """The first entry kept that is wanted, as soon as there is one. For one waiter at a time."""
        while True:
            self._changed.clear()
            found = next((entry for entry in self.entries if wanted(entry)), None)
            if found is not None:
                return found
            await self._changed.wait()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
