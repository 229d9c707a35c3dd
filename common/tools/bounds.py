"""How much of an output a model gets: head and tail, with the true size told; no lone surrogate leaves here.

Measured in UTF-8 bytes, so that one long line or text of many-byte characters does not pass (CASES C83).
"""

from celeriac.common.contract.text import clean_text


def bounded(text: str, limit: int) -> str:
    """At most `limit` UTF-8 bytes: head and tail, and between them how many there were. Cut on code points."""
    text = clean_text(text)
    data = text.encode()
    if len(data) <= limit:
        return text
    mark = f"\n[… {len(data)} bytes in all; the middle is left out …]\n"
    room = max(limit - len(mark.encode()), 0)
    head, tail = data[: room - room // 3], data[len(data) - room // 3 :]
    # only the borders can hold parts of characters, so ignoring errors drops nothing else
    return head.decode(errors="ignore") + mark + tail.decode(errors="ignore")
