"""What a command wrote, bounded and readable: decoding, terminal codes, head and tail (SECURITY, PTY tasks). No I/O."""

import codecs
import re

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS and their like: titles, links
    r"|[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"  # character sets, two-character codes
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
"""A code whose end has not come yet."""
_ESCAPE_ROOM = 4096
"""Characters that an unfinished code is waited for; a stray one must not hold back the rest of the output."""
_CONTROL = re.compile("[\x00-\x07\x0b-\x0c\x0e-\x1f\x7f-\x9f]")
_C1 = re.compile("[\x80-\x9f]")
_TO_SUB = bytes(0x1A if (byte < 0x20 and byte not in b"\b\t\n\r") or byte == 0x7F else byte for byte in range(256))
"""Control bytes → SUB: in UTF-8 such a byte is always a character of its own."""
_LINE_ROOM = 8192
"""Characters of an unfinished line that a carriage return may still take back; a longer line is passed on in parts."""


class Decoder:
    """Bytes → text without terminal codes, in any division of the bytes. Invalid ones become U+FFFD."""

    def __init__(self) -> None:
        """For one stream."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes, *, last: bool = False) -> str:
        """The text that these bytes complete; `last` completes the stream."""
        text = self._held + self._utf8.decode(data, last)
        self._held = ""
        if "\x1b" in text:
            text = _ESCAPE.sub("", text)
            unfinished = _UNFINISHED.search(text)
            if unfinished is not None and len(unfinished[0]) < _ESCAPE_ROOM:
                self._held = "" if last else unfinished[0]
                text = text[: unfinished.start()]
        return _printable(text) if _CONTROL.search(text) else text


def _printable(text: str) -> str:
    """Control characters as U+FFFD; by way of bytes, since binary output has millions of them."""
    return _C1.sub("\ufffd", text.encode().translate(_TO_SUB).decode().replace("\x1a", "\ufffd"))


class Lines:
    """Text → the lines that a terminal would show: a carriage return begins one anew, a backspace takes one back."""

    def __init__(self) -> None:
        """For one stream."""
        self._line = ""

    def feed(self, text: str) -> str:
        """What can no longer change."""
        text = self._line + text
        head, newline, self._line = text.rpartition("\n")
        done = _settle(head) + newline if newline else ""
        if len(self._line) > _LINE_ROOM:
            done, self._line = self._shorten(done)
        return done

    def _shorten(self, done: str) -> tuple[str, str]:
        """Keep an unfinished line small: rewritten parts go, and what is still too long is passed on."""
        ends_in_return = self._line.endswith("\r")
        line = _settle(self._line.rstrip("\r"))
        if len(line) > _LINE_ROOM:
            return done + line, "\r" if ends_in_return else ""
        return done, line + "\r" if ends_in_return else line

    def end(self) -> str:
        """The unfinished last line."""
        line, self._line = self._line, ""
        return _settle(line)


def _settle(text: str) -> str:
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    while "\b" in text:
        shorter = re.sub("[^\n\b]\b", "", text)
        text = shorter if shorter != text else text.replace("\b", "")
    return text


class Ring:
    """The head and the tail of a text, in UTF-8 bytes; what is between is counted and dropped."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        """Empty."""
        self._head_room, self._tail_room = head_bytes, tail_bytes
        self._head, self._tail = bytearray(), bytearray()
        self.dropped = 0

    def feed(self, text: str) -> None:
        """Add text at the end."""
        data = text.encode()
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_room:
            self._trim()

    def _trim(self) -> None:
        excess = max(0, len(self._tail) - self._tail_room)
        self.dropped += excess
        del self._tail[:excess]

    def text(self, total_bytes: int) -> str:
        """Both parts, with a mark between them that tells the true size; cut between characters."""
        self._trim()
        if not self.dropped:
            return (self._head + self._tail).decode()
        # only the borders can hold parts of characters, so ignoring errors drops nothing else
        head, tail = self._head.decode(errors="ignore"), self._tail.decode(errors="ignore")
        mark = f"\n[… {self.dropped} bytes left out of the middle; the whole output was {total_bytes} bytes …]\n"
        return head + mark + tail


class Output:
    """Everything above in one: feed bytes, show text live, and have the bounded text at the end."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        """For one command."""
        self._decoder, self._lines, self._ring = Decoder(), Lines(), Ring(head_bytes, tail_bytes)
        self.total_bytes = 0

    def feed(self, data: bytes) -> str:
        """Take bytes; returns their text for live output, terminal codes removed."""
        self.total_bytes += len(data)
        text = self._decoder.feed(data)
        self._ring.feed(self._lines.feed(text))
        return text

    def finish(self) -> str:
        """End the stream; returns the last piece for live output."""
        text = self._decoder.feed(b"", last=True)
        self._ring.feed(self._lines.feed(text) + self._lines.end())
        return text

    @property
    def text(self) -> str:
        """The bounded text, once finished."""
        return self._ring.text(self.total_bytes)

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self._ring.dropped > 0
