"""Replacing text in a file's bytes exactly (CASES C05, C17, C29, C106). No I/O.

Line ends are those of the file: a `\\n` that is looked for also finds `\\r\\n`, and what is put in takes the file's
own. Bytes that
are not UTF-8 are carried through as they are; in such a file only ASCII can be replaced, and only where it cannot be
the second
half of a two-byte character.
"""

import re
from dataclasses import dataclass

from celeriac.common.contract.errors import CeleriacError
from celeriac.workers.tools.encoding import is_utf8, probable


class NotReplaced(CeleriacError):
    """The replacement was refused; the text says why."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The new bytes and how many places were changed."""

    data: bytes
    count: int


def replace(data: bytes, old: str, new: str, *, everywhere: bool) -> Replaced:
    """Replace one place, or all. Raises NotReplaced."""
    foreign = not is_utf8(data)
    if foreign and not (old.isascii() and new.isascii()):
        raise NotReplaced(
            f"the file is not UTF-8 (probably {probable(data)}), so only ASCII text can be replaced in it; "
            "convert the file with a command first"
        )
    text = data.decode("utf-8", "surrogateescape")
    found = [match.span(1) for match in _pattern(old).finditer(text)]
    if not found:
        raise NotReplaced("old_string is not in the file; it must match exactly, with all blanks")
    if len(found) > 1 and not everywhere:
        raise NotReplaced(
            f"old_string is in the file {len(found)} times; make it longer until it is unique, or set replace_all"
        )
    if foreign and any(_may_be_trail(text, start) for start, _ in found):
        raise NotReplaced(
            f"old_string may lie inside a two-byte character of this file (probably {probable(data)}); "
            "convert the file to UTF-8 with a command first"
        )
    spans = _apart(found)
    return Replaced(_spliced(text, spans, _with_ends(new, text)).encode("utf-8", "surrogateescape"), len(spans))


def _pattern(old: str) -> re.Pattern[str]:
    """Every place where `old` begins, overlapping ones too: two that overlap are two."""
    lines = [re.escape(line) for line in old.replace("\r\n", "\n").split("\n")]
    return re.compile("(?=(" + "\\r?\\n".join(lines) + "))")


def _apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that do not overlap the one before."""
    kept: list[tuple[int, int]] = []
    for start, end in spans:
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept


def _with_ends(new: str, text: str) -> str:
    """`new` with the line ends that most lines of the file have."""
    crlf = text.count("\r\n")
    plain = new.replace("\r\n", "\n") if crlf else new
    return plain.replace("\n", "\r\n") if crlf > text.count("\n") - crlf else new if not crlf else plain


def _spliced(text: str, spans: list[tuple[int, int]], new: str) -> str:
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def _may_be_trail(text: str, start: int) -> bool:
    return start > 0 and "\udc80" <= text[start - 1] <= "\udcff"
