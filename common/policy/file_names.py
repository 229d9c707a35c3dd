"""File names as text that a model can read and give back (CASES C91).

A name is shown as it is, unless something in it could be misread: then it is shown in double quotes with the escapes
`\\n`, `\\t`, `\\r`, `\\"`, `\\\\`, `\\xHH` (a byte that is no UTF-8), `\\uHHHH`, `\\UHHHHHHHH`. What begins and ends
with a double quote is read in that form. Inside the process a name is a `str` with surrogate escapes, as
`os.fsdecode` makes it.
"""

import os
import re
import unicodedata

_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_LONG = {value: key for key, value in _SHORT.items()}
_ESCAPED = re.compile(r'\\(?:[ntr"\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})')
_SUSPECT_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
"""Control, format, private and unassigned characters, and every blank but the plain one."""


def show(name: str) -> str:
    """The form of a name that stands on one line and can be read back."""
    composed = unicodedata.normalize("NFC", name) == name
    inner = "".join(_show(char, composed=composed) for char in name)
    plain = inner == name and name.strip() == name and name and not name.startswith('"')
    return name if plain else f'"{_quoted_ends(inner)}"'


def _show(char: str, *, composed: bool) -> str:
    if char in _SHORT and char != '"':
        return _SHORT[char]
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    combining = not composed and unicodedata.combining(char)
    punctuation = "\u2000" <= char <= "\u206f"  # curly quotes and dashes: easily taken for their plain likes
    suspect = char != " " and unicodedata.category(char) in _SUSPECT_CATEGORIES
    if combining or punctuation or suspect:
        return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"
    return char


def _quoted_ends(inner: str) -> str:
    return inner.replace('"', '\\"')


def parse(text: str) -> str:
    """The name that a text stands for. Raises ValueError for a quoted form that cannot be read."""
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text
    inner = text[1:-1]
    if '"' in _ESCAPED.sub("", inner) or "\\" in _ESCAPED.sub("", inner):
        raise ValueError(f'{text} is not a quoted file name: write a double quote as \\" and a backslash as \\\\')
    # bytes first, so that \xc3\xa9 is one character again
    return os.fsdecode(os.fsencode(_ESCAPED.sub(_read, inner)))


def _read(match: re.Match[str]) -> str:
    code = match[0][1:]
    if code[0] == "x":
        value = int(code[1:], 16)
        return chr(value) if value < 0x80 else chr(0xDC00 + value)
    return chr(int(code[1:], 16)) if code[0] in "uU" else _LONG[match[0]]
