"""Glob and Grep: names that can be read back, patterns that are no options, bounded answers (CASES C67, C91, C31)."""

import os
from pathlib import Path

import pytest

from celeriac.common.policy.file_names import parse, show
from celeriac.common.testing.hands import Hands
from celeriac.workers.tools.patterns import Pattern, alternatives

ODD_NAMES = [
    "a\u202fb.txt", "a\u00a0b", "cafe\u0301", "café", "x\ny", " lead", "trail ", "-n", "--", "-",
    "\udcff", "a\udcffb\udc80",
    "it\u2019s", '"quoted"', 'half"', "back\\slash", "tab\there", "\u200b", "r\u202elt", "*", "[a]", "{a,b}", "~",
    "$HOME",
    "`id`", "a;b", "a:1:b", "#", "\x1b[31m", "\u0e01\u0e33", "日本", "\U0001f600", "x\r", "\x7f", "\u2028",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_what_is_shown_can_be_parsed_and_stands_on_one_line(name: str) -> None:
    shown = show(name)
    assert parse(shown) == name
    shown.encode()
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("name", "shown"), [("x\ny", '"x\\ny"'), (" lead", '" lead"'), ("\udcff", '"\\xff"'), ("a b", "a b")]
)
def test_the_escaped_form_is_the_documented_one(name: str, shown: str) -> None:
    assert show(name) == shown


@pytest.mark.parametrize("text", ['"a"b"', '"a\\q"', '"\\"', '"\\x4"'])
def test_a_quoted_form_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="quoted file name"):
        parse(text)


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_every_listed_name_can_be_read_edited_and_searched(hands: Hands, name: str) -> None:
    (hands.root / "sub").mkdir()
    file = hands.root / "sub" / name
    file.write_bytes(b"needle\n")
    shown = (await hands.glob("**")).text
    assert "\n" not in shown
    assert "needle" in (await hands.read(shown)).text
    assert not (await hands.edit(shown, "needle", "needles")).is_error
    assert file.read_bytes() == b"needles\n"
    assert (await hands.grep("needles")).text == shown
    assert (await hands.grep("needles", path=shown)).text == shown
    assert (await hands.grep("needles", output_mode="count")).text == f"{shown}:1"
    assert (await hands.grep("needles", output_mode="content")).text == f"{shown}:1:needles"


async def test_a_name_in_bytes_is_taken_as_the_system_has_it(hands: Hands) -> None:
    (hands.root / os.fsdecode(b"a\xff")).write_text("x\n")
    result = await hands.read("a\udcff")
    assert not result.is_error
    missing = await hands.read("b\udcff")
    assert missing.is_error
    missing.text.encode()


@pytest.mark.parametrize("pattern", ["--pre=PROGRAM", "-e", "->", "--files", "--", "-", "-f/etc/passwd", "--help"])
async def test_a_pattern_that_looks_like_an_option_is_searched_for(hands: Hands, tmp_path: Path, pattern: str) -> None:
    program, mark = tmp_path / "x.sh", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    pattern = pattern.replace("PROGRAM", str(program))
    (hands.root / "f").write_text(f"one {pattern} two\n")
    (hands.root / "other").write_text("nothing\n")
    assert (await hands.grep(pattern)).text == "f"
    assert (await hands.grep("one", glob="-x")).text == "no match"
    assert (await hands.grep("one", path="-rf")).is_error
    assert not mark.exists()


async def test_files_named_like_options_are_searched(hands: Hands) -> None:
    (hands.root / "-rf").mkdir()
    (hands.root / "-rf" / "--pre=x").write_text("needle\n")
    assert (await hands.grep("needle", path="-rf")).text == "-rf/--pre=x"
    assert (await hands.grep("needle", path="-rf/--pre=x", output_mode="content")).text == "-rf/--pre=x:1:needle"


async def test_the_modes_of_grep(hands: Hands) -> None:
    (hands.root / "a.py").write_text("one\ntwo\nthree\ntwo\n")
    (hands.root / "b.txt").write_text("TWO\n")
    (hands.root / ".hidden").write_text("two\n")
    (hands.root / ".git").mkdir()
    (hands.root / ".git" / "x").write_text("two\n")
    assert (await hands.grep("two")).text == ".hidden\na.py"
    assert (await hands.grep("two", glob="*.py")).text == "a.py"
    assert (await hands.grep("two", **{"-i": True})).text == ".hidden\na.py\nb.txt"
    assert (await hands.grep("two", output_mode="count")).text == ".hidden:1\na.py:2"
    content = (await hands.grep("three", output_mode="content", **{"-B": 1, "-A": 1})).text
    assert content == "a.py-2-two\na.py:3:three\na.py-4-two"
    assert (await hands.grep("three", output_mode="content", **{"-n": False})).text == "a.py:three"
    assert (await hands.grep("one.two", multiline=True)).text == "a.py"
    assert (await hands.grep("nowhere")).text == "no match"
    assert (await hands.grep("(", output_mode="content")).is_error


async def test_a_search_is_bounded(hands: Hands) -> None:
    (hands.root / "many").write_text("x\n" * 100_000)
    (hands.root / "long").write_text("y" * 400_000 + "\n" + "z" * 3_000_000 + "\n")
    text = (await hands.grep("x", output_mode="content", head_limit=7)).text
    assert len(text.split("\n")) == 8
    assert "more than 7" in text
    assert len((await hands.grep("y", output_mode="content")).text) < 1000
    assert (await hands.grep("z")).text == "long"
    assert len((await hands.grep("z", output_mode="content")).text) < 1000


async def test_bytes_that_are_no_text_are_replaced(hands: Hands) -> None:
    (hands.root / "f").write_bytes(b"caf\xe9 needle\n")
    assert (await hands.grep("needle", output_mode="content")).text == "f:1:caf\ufffd needle"


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "d/e/a.py", True),
        ("src/**", "src/a", True),
        ("src/**", "src", True),
        ("src/**/t.py", "src/t.py", True),
        ("src/**/t.py", "src/a/b/t.py", True),
        ("**/a/**/b", "x/a/y/z/b", True),
        ("*.{py,ts}", "a.ts", True),
        ("{a,b}/{c,d}", "b/c", True),
        ("[ab].py", "b.py", True),
        ("a?c", "abc", True),
        ("*", ".hidden", True),
        ("./x", "x", True),
        ("a{b", "a{b", True),
    ],
)
def test_patterns(pattern: str, path: str, found: bool) -> None:
    assert Pattern(pattern).matches(path) is found


def test_a_nasty_pattern_is_quick() -> None:
    assert not Pattern("*a" * 60 + "b").matches("a" * 200)
    assert not Pattern("**/*a/" * 20 + "b").matches("/".join("a" * 20) + "/c" * 60)
    assert alternatives("{a,b}" * 20) == ["{a,b}" * 20]


async def test_glob_is_bounded_and_relative_to_the_workspace(hands: Hands) -> None:
    for number in range(600):
        (hands.root / f"f{number:03}").touch()
    (hands.root / "d").mkdir()
    (hands.root / "d" / "x").touch()
    lines = (await hands.glob("*")).text.split("\n")
    assert lines[0] == "f000"
    assert "600 files match" in lines[-1]
    assert (await hands.glob("x", "d")).text == "d/x"
    assert (await hands.glob(f"{hands.root}/d/*")).text == "d/x"
    assert (await hands.glob("nothing")).text == "no file matches"
    assert (await hands.glob("*", "missing")).is_error
