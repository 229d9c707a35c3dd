"""Bytes of files as text, and back without touching what was not asked for (CASES C05, C17, C106). No I/O."""

import codecs

_PROBE = 8192
"""Bytes in which a NUL means that a file is no text."""
_GUESSES = ("shift_jis", "euc_jp", "gb18030", "cp1252", "latin-1")
"""Tried in this order; `latin-1` takes everything."""
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def readable(data: bytes) -> str | None:
    """The text to show, without a byte order mark; None for a binary file. What is not UTF-8 becomes U+FFFD."""
    encoding = _UTF16.get(data[:2])
    if encoding is not None:
        return data[2:].decode(encoding, "replace")
    if b"\0" in data[:_PROBE]:
        return None
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def is_utf8(data: bytes) -> bool:
    """Whether all of it is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def probable(data: bytes) -> str:
    """The likeliest name of the encoding of bytes that are not UTF-8."""
    if (encoding := _UTF16.get(data[:2])) is not None:
        return encoding
    return next(name for name in _GUESSES if _decodes(data, name))


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
