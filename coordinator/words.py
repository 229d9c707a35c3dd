"""Short harmless texts for people. Loads nothing, so that every command may use it."""

import re

LINE_CHARS = 160
"""Longest piece of foreign text in one line."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""C0 (but tab and line feed), DEL and C1: what a terminal would obey."""


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def brief(text: str, limit: int = LINE_CHARS) -> str:
    """One harmless line, shortened."""
    line = harmless(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def duration(milliseconds: int) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
