"""Read, Edit and Write on the bytes of files (CASES C05, C17, C29, C31, C106)."""

import os
from pathlib import Path

import pytest

from celeriac.common.testing.hands import Hands
from celeriac.workers.tools.stamps import ReadStamps


def put(hands: Hands, data: bytes, name: str = "f") -> Path:
    file = hands.root / name
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "a\nB", b"a\r\nB\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "a\r\nB", b"a\r\nB\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b", "b\nnew", b"a\r\nb\r\nnew\r\nc\r\n"),
        (b"a\nb\nc\n", "a\nb", "a\nB\nC", b"a\nB\nC\nc\n"),
        (b"a\nb\r\nc\r\n", "a\nb", "a\nB", b"a\r\nB\r\nc\r\n"),
        (b"a\nb\nc\r\n", "b\nc", "B\nC", b"a\nB\nC\r\n"),
        (b"a\r\n\r\nb\r\n", "a\n\nb", "x", b"x\r\n"),
        (b"x\n", "x\n", "", b""),
    ],
)
async def test_line_ends_stay_those_of_the_file(hands: Hands, before: bytes, old: str, new: str, after: bytes) -> None:
    file = put(hands, before)
    result = await hands.read_and_edit("f", old, new)
    assert not result.is_error, result.text
    assert file.read_bytes() == after


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"x=1\ncaf\xe9\n", "x=1", "x=2", b"x=2\ncaf\xe9\n"),
        (b"\xff\xfe\xfdx=1\n\x80\x81", "x=1", "x=22", None),
        (b"x=1\n\xc3\x28\n", "x=1", "y", b"y\n\xc3\x28\n"),
        (b"\xef\xbb\xbfx=1\n", "x=1", "x=2", b"\xef\xbb\xbfx=2\n"),
    ],
)
async def test_bytes_that_are_not_touched_stay(
    hands: Hands, before: bytes, old: str, new: str, after: bytes | None
) -> None:
    file = put(hands, before)
    await hands.read("f")
    result = await hands.edit("f", old, new)
    assert file.read_bytes() == (before if result.is_error else after or before.replace(old.encode(), new.encode()))
    assert b"\xef\xbf\xbd" not in file.read_bytes()


SJIS = b"\x93\xfa\x96\x7b\x0aA\x0a"


@pytest.mark.parametrize(("old", "new"), [("A", "日"), ("日", "A"), ("A", "é"), ("{", "x")])
async def test_encodings_are_never_mixed(hands: Hands, old: str, new: str) -> None:
    file = put(hands, SJIS)
    result = await hands.read_and_edit("f", old, new)
    assert result.is_error
    assert file.read_bytes() == SJIS
    if new != "x" and old != "日":
        assert "shift_jis" in result.text


async def test_ascii_in_a_file_of_another_encoding_can_be_edited(hands: Hands) -> None:
    file = put(hands, SJIS)
    assert not (await hands.read_and_edit("f", "A", "BC")).is_error
    assert file.read_bytes() == b"\x93\xfa\x96\x7b\x0aBC\x0a"


@pytest.mark.parametrize(
    "new", [r"a\1b $1 $& $$ \g<0> \n", "\\", "$0", "\\\\n", "%s {0} ${HOME} `x`", "\t\x0b\x85\u2028"]
)
async def test_the_replacement_is_taken_literally(hands: Hands, new: str) -> None:
    file = put(hands, b"pX q")
    assert not (await hands.read_and_edit("f", "X", new)).is_error
    assert file.read_bytes().decode() == f"p{new} q"


async def test_the_text_looked_for_is_no_pattern(hands: Hands) -> None:
    file = put(hands, b"a.c abc a+c")
    assert not (await hands.read_and_edit("f", "a.c", "1")).is_error
    assert not (await hands.edit("f", "a+c", "2")).is_error
    assert file.read_bytes() == b"1 abc 2"


async def test_an_ambiguous_edit_is_refused_with_the_count(hands: Hands) -> None:
    file = put(hands, b"x y x y x aaa")
    assert "3 times" in (await hands.read_and_edit("f", "x", "z")).text
    assert "2 times" in (await hands.edit("f", "aa", "b")).text
    assert "not in the file" in (await hands.edit("f", "q", "z")).text
    assert "same" in (await hands.edit("f", "x", "x")).text
    assert file.read_bytes() == b"x y x y x aaa"
    assert "3 places" in (await hands.edit("f", "x", "z", everywhere=True)).text
    assert file.read_bytes() == b"z y z y z aaa"


async def test_a_file_is_read_before_it_is_changed(hands: Hands) -> None:
    file = put(hands, b"old\n")
    assert "read it before" in (await hands.edit("f", "old", "new")).text
    assert "read it before" in (await hands.write("f", "new")).text
    assert file.read_bytes() == b"old\n"
    await hands.read("f")
    assert not (await hands.write("f", "new\n")).is_error
    assert not (await hands.edit("f", "new", "newer")).is_error
    assert file.read_bytes() == b"newer\n"


async def test_a_file_that_changed_meanwhile_is_refused(hands: Hands) -> None:
    file = put(hands, b"old\n")
    await hands.read("f")
    status = file.stat()
    file.write_bytes(b"oLd\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    for result in (await hands.edit("f", "L", "new"), await hands.write("f", "new")):
        assert "changed since" in result.text
    assert file.read_bytes() == b"oLd\n"
    file.unlink()
    assert (await hands.edit("f", "L", "new")).is_error


async def test_a_stamp_is_kept_by_the_path_that_links_lead_to(hands: Hands) -> None:
    put(hands, b"x\n", "real")
    (hands.root / "link").symlink_to("real")
    result = await hands.read("link")
    assert not (await hands.edit("./real", "x", "y")).is_error
    stamps = hands.state["Read"]
    assert isinstance(stamps, ReadStamps)
    assert list(stamps.files) == ["real"]
    assert result.meta is not None


async def test_writing_makes_folders_and_keeps_the_mode(hands: Hands) -> None:
    assert not (await hands.write("a/b/c.txt", "x")).is_error
    script = put(hands, b"#!/bin/sh\n", "run.sh")
    script.chmod(0o754)
    assert not (await hands.read_and_edit("run.sh", "sh", "bash")).is_error
    assert script.stat().st_mode & 0o7777 == 0o754
    assert (hands.root / "a/b/c.txt").read_text() == "x"
    assert not [path for path in hands.root.rglob("*") if path.name.startswith(".celeriac-")]


async def test_writing_through_a_file_as_a_folder_is_an_error(hands: Hands) -> None:
    put(hands, b"x")
    assert "not a folder" in (await hands.write("f/g", "x")).text
    assert (await hands.write(".", "x")).is_error


@pytest.mark.parametrize("bad", ["\ud83d", "x\udcffy", "\ude00"])
async def test_half_a_surrogate_pair_is_refused(hands: Hands, bad: str) -> None:
    file = put(hands, b"x\n")
    await hands.read("f")
    for result in (await hands.edit("f", "x", bad), await hands.edit("f", bad, "x"), await hands.write("f", bad)):
        assert result.is_error
        result.text.encode()
    assert file.read_bytes() == b"x\n"


async def test_read_shows_numbered_lines_and_where_to_go_on(hands: Hands) -> None:
    put(hands, b"".join(b"line %d\r\n" % number for number in range(1, 3001)))
    text = (await hands.read("f")).text
    assert text.startswith("     1\tline 1\n     2\tline 2\n")
    assert text.endswith("[lines 1 to 2000 of 3000; go on with offset 2001]") or "go on with offset" in text
    assert (await hands.read("f", offset=2999)).text == "  2999\tline 2999\n  3000\tline 3000"
    assert (await hands.read("f", offset=5, limit=1)).text.startswith("     5\tline 5\n[lines 5 to 5 of 3000;")
    assert "3000 lines" in (await hands.read("f", offset=3001)).text


@pytest.mark.parametrize("line", [b"A" * 5_000_000, "😀".encode() * 2_000_000, b"\xff" * 1_000_000])
async def test_one_huge_line_is_cut(hands: Hands, line: bytes) -> None:
    put(hands, line + b"\nsecond\n")
    text = (await hands.read("f")).text
    assert len(text.encode()) < 28_200
    assert "second" in text
    assert "more characters" in text


async def test_a_binary_or_huge_file_is_not_shown(hands: Hands) -> None:
    put(hands, b"\x7fELF\0\0")
    assert "binary" in (await hands.read("f")).text
    with (hands.root / "huge").open("wb") as file:
        file.truncate(60 * 1024 * 1024)
    assert "larger" in (await hands.read("huge")).text


async def test_empty_and_utf16_files_are_readable(hands: Hands) -> None:
    put(hands, b"")
    assert "empty" in (await hands.read("f")).text
    put(hands, "héllo\n".encode("utf-16"), "u")
    assert (await hands.read("u")).text == "     1\théllo"
