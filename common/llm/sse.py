"""Server-sent events out of bytes: only `event` and `data`, which is all that the Messages API uses. Pure."""

import re

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class SseSplitter:
    """Feed it the bytes of a stream in any pieces; it gives the complete events as (event name, data)."""

    def __init__(self) -> None:
        """Nothing read."""
        self._rest = b""

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """The events that this piece completes. What has no blank line after it is not an event yet."""
        *complete, self._rest = _END.split(self._rest + chunk)
        return [event for block in complete if (event := _event(block)) is not None]


def _event(block: bytes) -> tuple[str, str] | None:
    name, data = "", []
    for line in block.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return (name, "\n".join(data)) if name or data else None
