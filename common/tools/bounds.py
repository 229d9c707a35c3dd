"""How much of an output a model gets: head and tail by characters, with the true size told; no lone surrogate leaves
here."""

import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def whole(text: str) -> str:
    """The text without lone surrogates, which no request body can hold."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def bounded(text: str, limit: int) -> str:
    """At most `limit` characters: head and tail, and between them what was left out of how many. Cut on code points."""
    text = whole(text)
    if len(text) <= limit:
        return text
    mark = f"\n[… {len(text)} characters in all; the middle is left out …]\n"
    room = max(limit - len(mark), 0)
    head = room - room // 3
    return text[:head] + mark + text[len(text) - room // 3 :]
