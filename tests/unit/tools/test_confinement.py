"""Nothing outside the workspace is read, written or created, and nothing waits (CASES C40, C79)."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from celeriac.common.contract.errors import UsageError
from celeriac.common.testing.hands import Hands
from celeriac.workers.workspace import Workspace, WorkspaceError


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "v").write_text("secret\n")
    return folder


@pytest.fixture
def traps(hands: Hands, outside: Path) -> Hands:
    """Links that lead out in every way, and what is equal to them."""
    root = hands.root
    (root / "out").symlink_to(outside)
    (root / "notes.md").symlink_to(outside / "v")
    (root / "draft").symlink_to(outside / "new")
    (root / "relative").symlink_to("../outside/v")
    (root / "sub").mkdir()
    (root / "sub" / "up").symlink_to("../../outside")
    (root / "chain").symlink_to("sub/up/v")
    (root / "proc").symlink_to("/proc/self/root")
    return hands


ESCAPES = [
    "out/v", "out/a", "out/new/deep", "notes.md", "draft", "relative", "sub/up/v", "chain", "proc/etc/passwd",
    "../outside/v", "sub/../../outside/v", "./.././outside/v", "/etc/passwd", "out", "..",
]  # fmt: skip


@pytest.mark.parametrize("path", ESCAPES)
async def test_what_leads_out_is_refused_in_every_tool(traps: Hands, outside: Path, path: str) -> None:
    for result in (
        await traps.read(path),
        await traps.write(path, "overwritten"),
        await traps.edit(path, "secret", "changed"),
        await traps.grep("secret", path=path),
        await traps.glob("*", path),
    ):
        assert result.is_error, result.text
        assert "secret" not in result.text
    assert os.listdir(outside) == ["v"]  # noqa: PTH208 - a test may block
    assert (outside / "v").read_text() == "secret\n"


async def test_a_prefix_that_looks_like_the_root_is_outside(hands: Hands, tmp_path: Path) -> None:
    beside = tmp_path / "ws-other"
    beside.mkdir()
    (beside / "f").write_text("x")
    assert (await hands.read(f"{beside}/f")).is_error
    assert (await hands.read(f"{hands.root}/../ws-other/f")).is_error


async def test_searching_and_listing_pass_over_links_that_lead_out(traps: Hands) -> None:
    (traps.root / "plain").write_text("secret of mine\n")
    assert (await traps.grep("secret")).text == "plain"
    assert (await traps.glob("**")).text == "plain"


@pytest.mark.parametrize("target", ["sub/real.txt", "./sub/../sub/real.txt", "ABSOLUTE"])
async def test_a_link_that_stays_inside_works(hands: Hands, target: str) -> None:
    (hands.root / "sub").mkdir()
    real = hands.root / "sub" / "real.txt"
    real.write_text("one\n")
    (hands.root / "link").symlink_to(str(real) if target == "ABSOLUTE" else target)
    (hands.root / "folder").symlink_to("sub")

    assert "one" in (await hands.read("link")).text
    assert not (await hands.edit("link", "one", "two")).is_error
    assert real.read_text() == "two\n"
    assert (hands.root / "link").is_symlink()
    assert not (await hands.edit("folder/real.txt", "two", "three")).is_error
    assert not (await hands.edit("folder/../sub/real.txt", "three", "four")).is_error
    assert real.read_text() == "four\n"
    assert "link" in (await hands.glob("*")).text.split("\n")


async def test_a_dangling_link_inside_is_written_through(hands: Hands) -> None:
    (hands.root / "later").symlink_to("made.txt")
    assert not (await hands.write("later", "x")).is_error
    assert (hands.root / "made.txt").read_text() == "x"
    assert (hands.root / "later").is_symlink()


async def test_a_loop_of_links_is_an_error(hands: Hands) -> None:
    (hands.root / "a").symlink_to("a")
    (hands.root / "b").symlink_to("c")
    (hands.root / "c").symlink_to("b")
    for path in ("a", "b", "b/x"):
        async with asyncio.timeout(1):
            assert "loop" in (await hands.read(path)).text
            assert (await hands.write(path, "x")).is_error


async def test_special_files_are_refused_at_once(hands: Hands) -> None:
    os.mkfifo(hands.root / "fifo")
    server = socket.socket(socket.AF_UNIX)
    try:
        here = os.open(hands.root, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        (hands.root / "folder").mkdir()
        for path in ("fifo", "socket", "folder", "/dev/zero", "/dev/stdin", "/proc/self/mem"):
            async with asyncio.timeout(1):
                assert (await hands.read(path)).is_error
                assert (await hands.write(path, "x")).is_error
        assert stat.S_ISFIFO((hands.root / "fifo").stat().st_mode)
    finally:
        server.close()


async def test_a_device_inside_the_workspace_is_refused() -> None:
    workspace = Workspace(Path("/dev"))
    try:
        for name in ("zero", "null", "stdin"):
            async with asyncio.timeout(1):
                with pytest.raises(WorkspaceError):
                    await workspace.read(name)
    finally:
        workspace.close()


async def test_a_fifo_does_not_stop_a_search(hands: Hands) -> None:
    os.mkfifo(hands.root / "p")
    (hands.root / "f").write_text("needle\n")
    async with asyncio.timeout(5):
        assert (await hands.grep("needle")).text == "f"
        assert (await hands.grep("needle", path="p")).is_error
        assert (await hands.glob("*")).text == "f"


async def test_a_file_with_another_hard_link_is_not_written(hands: Hands, outside: Path) -> None:
    os.link(outside / "v", hands.root / "linked")
    assert "secret" in (await hands.read("linked")).text
    for result in (await hands.edit("linked", "secret", "x"), await hands.write("linked", "x")):
        assert result.is_error
        assert "hard link" in result.text
    assert (outside / "v").read_text() == "secret\n"


@pytest.mark.parametrize("path", ["", "a\0b", "a\0/../../etc", "\ud83d", "x" * 300])
async def test_names_that_no_file_can_have_are_errors(hands: Hands, path: str) -> None:
    for result in (await hands.read(path), await hands.write(path, "x")):
        assert result.is_error
        result.text.encode()


async def test_a_swapped_folder_never_leaks(hands: Hands, outside: Path) -> None:
    root = hands.root
    (root / "real").mkdir()
    (root / "real" / "v").write_text("mine\n")
    (root / "other").symlink_to(outside)
    (root / "d").symlink_to("real")

    async def swap() -> None:
        for turn in range(300):
            (root / "next").symlink_to("real" if turn % 2 else outside)
            (root / "next").rename(root / "d")
            await asyncio.sleep(0)

    swapping = asyncio.create_task(swap())
    while not swapping.done():
        assert "secret" not in (await hands.read("d/v")).text
    await swapping


async def test_a_workspace_that_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give an existing folder"):
        Workspace(tmp_path / "missing")


async def test_a_root_that_is_reached_through_a_link_has_two_spellings(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "real" / "f").write_text("x")
    workspace = Workspace(tmp_path / "alias")
    try:
        for path in ("f", f"{tmp_path}/alias/f", f"{tmp_path}/real/f"):
            assert (await workspace.read(path)).data == b"x"
    finally:
        workspace.close()
