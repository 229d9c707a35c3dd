"""Decoding, terminal codes and bounds of output, in any division of the bytes (CASES C31, C83)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.workers.shell.output import Decoder, Output, Ring


def read(data: bytes, size: int = 1 << 20, *, head: int = 20_000, tail: int = 8_000) -> str:
    output = Output(head, tail)
    for start in range(0, len(data), size):
        output.feed(data[start : start + size])
    output.finish()
    return output.text


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"10%\r50%\r100%\n", "100%\n"),
        (b"50%\r100%\r\n", "100%\n"),
        (b"10%\r100%", "100%"),
        (b"kept\r", "kept"),
        (b"ab\bc\b\b\bx\n", "x\n"),
        (b"\b\bx", "x"),
        (b"\x1b[31mred\x1b[0m \x1b[1;32mgreen\x1b[m\n", "red green\n"),
        (b"\x1b]0;title\x07text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "text link\n"),
        (b"\x1b(Bplain\x1b7\x1b8\x1b=\x1b>\n", "plain\n"),
        (b"10%\x1b[K\r20%\x1b[2K\rdone\n", "done\n"),
        ("wörld 日本 😀\n".encode(), "wörld 日本 😀\n"),
        (b"a\xffb\xc3", "a\ufffdb\ufffd"),
        (b"nul\0bell\x07del\x7f\n", "nul\ufffdbell\ufffddel\ufffd\n"),
        ("c1 \x85\x9b\n".encode(), "c1 \ufffd\ufffd\n"),
        (b"cut \x1b[3", "cut "),
        (b"tab\there\n", "tab\there\n"),
        (b"", ""),
    ],
)
def test_the_text_is_what_a_person_would_read(data: bytes, text: str, size: int) -> None:
    assert read(data, size) == text


@given(st.binary(max_size=300), st.integers(1, 20))
def test_the_division_of_the_bytes_does_not_matter(data: bytes, size: int) -> None:
    assert read(data, size) == read(data)


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_no_control_character_and_no_lone_surrogate_leaves(chunks: list[bytes]) -> None:
    decoder = Decoder()
    text = "".join(decoder.feed(chunk) for chunk in chunks) + decoder.feed(b"", last=True)
    text.encode()
    assert not any(char < " " and char not in "\b\t\n\r" for char in text)


@given(st.text(max_size=400), st.integers(0, 60), st.integers(0, 60))
def test_a_ring_is_bounded_and_cut_between_characters(text: str, head: int, tail: int) -> None:
    text = text.encode(errors="replace").decode()
    ring = Ring(head, tail)
    for char in text:
        ring.feed(char)
    kept = ring.text(len(text.encode()))
    if len(text.encode()) <= head + tail:
        assert kept == text
    else:
        first, mark, last = kept.partition("\n[… ")
        assert mark
        assert text.startswith(first)
        assert text.endswith(last.partition(" …]\n")[2])
        assert len(kept.encode()) < head + tail + 150


def test_the_mark_tells_the_true_size() -> None:
    assert read(b"A" * 5_000_000, head=10, tail=5) == (
        "A" * 10 + "\n[… 4999985 bytes left out of the middle; the whole output was 5000000 bytes …]\n" + "A" * 5
    )


def test_an_endless_line_and_an_endless_code_need_little_room() -> None:
    output = Output(100, 100)
    for _ in range(1000):
        output.feed(b"\x1b]0;" + b"x" * 10_000)
        output.feed(b"\r" + b"y" * 10_000)
    output.finish()
    assert len(output.text) < 400
