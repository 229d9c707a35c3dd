"""C94: a history with damage stays readable: what can be read is kept, the rest is named, and no two writers mix."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from celeriac.common.contract.errors import BadReplay, LeaseLost
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import State
from celeriac.common.llm.script import parse_script
from celeriac.common.llm.wire import dumps
from celeriac.common.settings import Settings
from celeriac.common.testing.command import CELERIAC
from celeriac.common.testing.replies import reply, say, script
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, says, tool_use
from celeriac.common.testing.substrate_kit import Kit, line
from celeriac.coordinator.client import Client
from celeriac.ops.standin.validator import validate

CUT = b'{"seq":2,"token":"1/a","run":1,"turn":1,"role":"user","content":[{"type":"tool_re'
DAMAGE = {
    "cut in the middle": CUT,
    "glued to the next": CUT + b'{"seq":3,"token":"1/a","run":1,"turn":1,"role":"user","content":[]}',
    "two in one": b'{"a":1}{"b":2}',
    "empty": b"",
    "NUL run": b"\0" * 4096,
    "another type": b"[1,2]",
    "null": b"null",
    "no UTF-8": b'{"role":"user\xff"}',
    "half a pair": b'{"role":"\\ud83d"}',
    "missing fields": b'{"role":"user"}',
}
damaged = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)


async def history(kit: Kit) -> tuple[Stage, TaskId]:
    """A completed run: prompt, call, result, answer; 4 lines."""
    stage = Stage(kit.substrate, [Probe("Bash", changes=True)])
    record, lines, _ = await stage.whole(Scripted([tool_use("t1", "Bash", text="a")]), says("done"))
    assert [one.role for one in lines] == ["user", "assistant", "user", "assistant"]
    return stage, record.task_id


async def spoil(kit: Kit, task_id: TaskId, number: int, damage: bytes) -> None:
    await kit.redis.lset(kit.keys.task(task_id, "x"), number, damage)  # type: ignore[arg-type]  # bytes are taken


@damaged
@pytest.mark.parametrize("number", [0, 1, 2, 3])
async def test_a_session_goes_on_with_every_line_that_can_be_read(
    damage: bytes, number: int, twin_kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    stage, task_id = await history(twin_kit)
    await spoil(twin_kit, task_id, number, damage)
    await twin_kit.substrate.inboxes.send_message(task_id, "1", "go on", op="send", sender=None)
    now = await twin_kit.substrate.records.get(task_id)
    model = await stage.play(now, await stage.claim(now), [says("gone on")])
    ended = await twin_kit.substrate.records.get(task_id)
    assert ended.state is State.COMPLETED and ended.outcome is not None and ended.outcome.text == "gone on"
    messages: list[JsonObject] = [{"role": m.role, "content": list(m.content)} for m in model.requests[0].messages]
    tools: list[JsonObject] = [{"name": "Bash", "input_schema": {"type": "object"}}]
    assert validate(dumps({"model": "m", "max_tokens": 1, "tools": [*tools], "messages": [*messages]})).reason == ""
    words = str(messages)
    kept = {0: "do it", 1: "'t1'", 2: "did a", 3: "done"}
    assert all(text in words for at, text in kept.items() if at not in {number, number + 1} or at == 0)
    assert f"line {number} of the transcript cannot be read" in caplog.text


@damaged
async def test_people_and_followers_still_see_the_rest(damage: bytes, twin_kit: Kit) -> None:
    _, task_id = await history(twin_kit)
    await spoil(twin_kit, task_id, 1, damage)
    client = Client(twin_kit.substrate, Settings(home=Path("/nowhere")))
    assert [one.seq for one in await client.transcript(task_id)] == [0, 2, 3]
    async with asyncio.timeout(10):
        seen = [event.type async for event in client.job(task_id).follow()]
    assert seen.count("unknown") == 1 and seen[-1] == "result"
    assert (await client.wait(task_id)).result == "done"


async def test_of_two_writers_only_the_owners_lines_stand(server_kit: Kit) -> None:
    """The former owner goes on writing while the next one does."""
    first = await server_kit.owned_session()
    await server_kit.expire(first.task_id)
    second = await server_kit.claim(first.task_id, process="other")
    outcomes = await asyncio.gather(
        *(lease.append([line("x" * 5000)]) for lease in (first, second) * 100), return_exceptions=True
    )
    lost = [outcome for outcome in outcomes if isinstance(outcome, LeaseLost)]
    lines = await server_kit.substrate.transcripts.lines(first.task_id)
    assert len(lost) == 100 and len(lines) == 100
    assert {one.token for one in lines} == {second.token} and [one.seq for one in lines] == list(range(100))


WHOLE = script(reply("s", 1, say("line\u2028one")), reply("s", 2, say("two")))


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        WHOLE.rstrip("\n"),
        "\ufeff" + WHOLE,
        WHOLE.replace("\n", "\r\n"),
        WHOLE.replace("\n", "\n\n  \n"),
        "\ufeff" + WHOLE.replace("\n", "\r\n").rstrip(),
    ],
    ids=["plain", "no LF at the end", "BOM", "CRLF", "blank lines", "all of it"],
)
def test_a_replay_file_is_read_however_it_was_saved(text: str) -> None:
    assert len(parse_script(text, "f").lines) == 2


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (WHOLE[:-20], 3),
        (WHOLE.replace("\n", "", 2), 1),
        (WHOLE + "\0" * 100, 4),
        (WHOLE.replace("}\n", "}", 1), 1),
        (WHOLE + "\ufeff{}", 4),
        (WHOLE.replace('"fp"', '"fp', 1), 2),
    ],
    ids=["cut", "glued", "NUL run", "glued to the header", "a second BOM", "a quote is gone"],
)
def test_one_that_is_damaged_is_refused_with_the_line(text: str, number: int) -> None:
    with pytest.raises(BadReplay) as caught:
        parse_script(text, "f")
    assert caught.value.line == number


@pytest.fixture
async def replay(tmp_path: Path) -> AsyncIterator[Path]:
    file = tmp_path / "replay.jsonl"
    file.write_text(script(reply("s", 1, say("long " * 20_000))))
    yield file


@pytest.mark.cluster
@pytest.mark.parametrize("output", ["stream-json", "json", "text"])
async def test_a_reader_that_dies_gets_whole_lines_and_the_writer_ends_quietly(
    output: str, replay: Path, tmp_path: Path
) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CELERIAC_HOME": str(tmp_path / "home")}
    process = await asyncio.create_subprocess_exec(
        *(str(CELERIAC), "run", "--replay", str(replay), "--output-format", output),
        cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    async with asyncio.timeout(50):
        if output == "stream-json":
            assert json.loads(await process.stdout.readline())["type"] == "system"
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # asyncio has no other way
        err = (await process.stderr.read()).decode()
        await process.wait()
    assert process.returncode == 1
    assert "Traceback" not in err and "Exception ignored" not in err
    assert not list((tmp_path / "home" / "run").glob("*")), "its server and folder are gone"
