"""Logging: one line a record, to stderr, with no key in it."""

import logging
import re
import sys
from collections.abc import Iterable
from typing import Protocol, TextIO

_KEY_SHAPES = re.compile(r"sk-[A-Za-z0-9_-]{16,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
"""Keys of the Messages API, and the password part of a URL."""
_MASK = "[redacted]"
_TALKERS = ("httpx2",)
"""Libraries that tell each request at level info; what people want to know of them is what went wrong."""


class OneLine(logging.Formatter):
    """One record, one line: line ends inside are shown as ⏎, secrets as [redacted]."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are masked wherever they stand, beside everything that looks like a key."""
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = tuple(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        """The line, its traceback included."""
        return redact(super().format(record), self._secrets).replace("\r", "").replace("\n", " ⏎ ")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask these secrets and everything that looks like a key."""
    for secret in secrets:
        text = text.replace(secret, _MASK)
    return _KEY_SHAPES.sub(_MASK, text)


class LogSettings(Protocol):
    """What of the settings logging needs."""

    @property
    def log_level(self) -> str:
        """debug, info, warning or error."""
        ...

    def secrets(self) -> tuple[str, ...]:
        """Texts that no log may hold."""
        ...


def configure(settings: LogSettings, *, level: str | None = None, stream: TextIO | None = None) -> None:
    """Send everything of `level` (else of the settings' level) and above to `stream` (else stderr).

    Calling it again replaces what was configured.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLine(settings.secrets()))
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    wanted = (level or settings.log_level).upper()
    root.setLevel(wanted)
    for talker in _TALKERS:
        logging.getLogger(talker).setLevel(wanted if wanted == "DEBUG" else logging.WARNING)
