"""Splitting bytes into server-sent events."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.llm.sse import SseSplitter

STREAM = (
    'event: a\ndata: {"t":"ü€😀"}\n\n: comment\n\nevent: b\r\ndata: 1\r\ndata: 2\r\n\r\ndata:x\n\nevent: cut\n'.encode()
)
EVENTS = [("a", '{"t":"ü€😀"}'), ("b", "1\n2"), ("", "x")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_pieces_give_the_same_events(cuts: list[int]) -> None:
    splitter = SseSplitter()
    borders = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(borders)]
    assert [event for piece in pieces for event in splitter.feed(piece)] == EVENTS
