"""JSON in and out: no lone surrogate passes (C31)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract.json import JsonValue
from celeriac.common.contract.text import clean_text
from celeriac.common.llm.wire import clean, dumps, loads, loads_object


def test_lone_surrogates_become_replacement_characters_everywhere() -> None:
    value: JsonValue = {"a\ud83d": ["x\udcff", {"b": "😀"}]}
    assert json.loads(dumps(value)) == {"a\ufffd": ["x\ufffd", {"b": "😀"}]}
    assert loads('["\\ud83d", "\\ud83d\\ude00"]') == ["\ufffd", "😀"]


def test_numbers_of_any_size_are_written() -> None:
    assert dumps([2**70]) == b"[1180591620717411303424]"


@pytest.mark.parametrize("text", ["", "{", "[1]", "NaN", "nul", '{"a": Infinity}'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads_object(text)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_cleaned_text_can_always_be_encoded(text: str) -> None:
    assert clean_text(text).encode().decode() == clean(text)
