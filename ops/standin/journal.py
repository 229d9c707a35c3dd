"""The stand-in's log: JSON lines that another process may read while they are written. Each is one write."""

import os
import time
from pathlib import Path

import orjson

from celeriac.common.contract.json import JsonObject


class Journal:
    """Appends lines to a file; without a file it keeps them only for `entries`."""

    def __init__(self, path: Path | None) -> None:
        """Open the file for appending."""
        self.entries: list[JsonObject] = []
        """Everything written by this process."""
        self._descriptor = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, entry: JsonObject) -> None:
        """Add a line, stamped with the time in epoch seconds."""
        stamped: JsonObject = {"at": round(time.time(), 3), **entry}
        self.entries.append(stamped)
        if self._descriptor is not None:
            os.write(self._descriptor, orjson.dumps(stamped) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
