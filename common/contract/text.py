"""Text that any encoder accepts: a lone surrogate would make a request body or a record impossible to write (C31)."""

import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""In a Python string every surrogate is a lone one."""


def clean_text(text: str) -> str:
    """The text with U+FFFD for each lone surrogate."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)
