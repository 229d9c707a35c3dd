"""C31: half of a surrogate pair, wherever it comes from, must neither leave the process nor end what it is part of."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakeredis import FakeServer

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import text_block
from celeriac.common.contract.task import Denial, Outcome, State, Subtype
from celeriac.common.llm.accumulate import Accumulator
from celeriac.common.llm.client import BadRequest, BlockDone
from celeriac.common.llm.sse import SseSplitter
from celeriac.common.llm.wire import dumps, loads_object
from celeriac.common.settings import Settings
from celeriac.common.substrate.embedded import EmbeddedServer
from celeriac.common.testing.command import CommandLine
from celeriac.common.testing.hands import Hands
from celeriac.common.testing.runs import Probe, Stage, Words
from celeriac.common.testing.scripted import Scripted, says, tool_use
from celeriac.common.testing.servers import in_memory
from celeriac.common.testing.substrate_kit import Kit
from celeriac.common.tools.base import ToolContext, ToolResult
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.standin.validator import validate

LONE = ["\ud83d", "\ude00", "a\udcffb", "\ud83d\ud83d\ude00x", "\ude00\ud83d", "caf\udce9"]
every = pytest.mark.parametrize("lone", LONE, ids=ascii)


class Says(Probe):
    """A tool that answers with its text, or raises it."""

    def __init__(self, text: str, *, raises: bool) -> None:
        super().__init__("Bash", changes=True)
        self._text, self._raises = text, raises

    async def run(self, i: Words, ctx: ToolContext) -> ToolResult:
        await ctx.emit(self._text)
        if self._raises:
            raise ValueError(self._text)
        return ToolResult(self._text)


@every
@pytest.mark.parametrize("raises", [False, True], ids=["text", "error"])
async def test_the_call_after_a_tool_that_said_it_succeeds(lone: str, raises: bool, stage: Stage) -> None:
    stage.tools = [Says(lone, raises=raises)]
    record, lines, model = await stage.whole(Scripted([tool_use("t1", "Bash")]), says("done"))
    assert record.state is State.COMPLETED
    messages: list[JsonObject] = [{"role": m.role, "content": list(m.content)} for m in model.requests[-1].messages]
    for message in model.requests[-1].messages:
        message.wire.decode()
    tools: list[JsonObject] = [{"name": "Bash", "input_schema": {"type": "object"}}]
    body = dumps({"model": "m", "max_tokens": 1, "tools": [*tools], "messages": [*messages]})
    assert validate(body).reason == ""
    assert "\ufffd" in str(lines[2].content)
    assert "\ufffd" in await stage.substrate.events.output(record.task_id)


@every
async def test_a_run_that_fails_with_it_tells_its_reason(lone: str, stage: Stage) -> None:
    record, _, _ = await stage.whole(Scripted([], failure=BadRequest(f"no {lone}")))
    assert record.outcome is not None and record.outcome.reason.startswith("bad_request: no ")
    record, _, _ = await stage.whole(Scripted([], failure=ValueError(lone)))  # type: ignore[arg-type]  # a defect
    assert record.outcome is not None and record.outcome.reason.startswith("internal error: ValueError: ")


@every
async def test_the_end_of_a_task_can_be_stored_and_told(lone: str, twin_kit: Kit) -> None:
    lease = await twin_kit.owned_session()
    agent = await twin_kit.claim(await twin_kit.agent(lease))
    denial = Denial(tool_name="Bash", tool_use_id="t1", reason=lone)
    outcome = Outcome(state=State.FAILED, subtype=Subtype.EXECUTION, reason=lone, text=lone, denials=(denial,))
    await agent.finish(outcome)
    (entry,) = await twin_kit.substrate.inboxes.unread(lease.task_id)
    entry.text.encode()
    assert entry.text.count("\ufffd") >= 2


@every
def test_an_input_from_the_model_is_cleaned_however_it_is_cut(lone: str) -> None:
    text = "".join(f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in lone)
    for cut in range(1, len(text)):
        pieces = ['{"command":"', text[:cut], text[cut:], '"}']
        events = [("message_start", '{"message":{}}')]
        start = '{"index":0,"content_block":{"type":"tool_use","id":"t","name":"Bash","input":{}}}'
        events.append(("content_block_start", start))
        for piece in pieces:
            delta: JsonObject = {"index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
            events.append(("content_block_delta", dumps(delta).decode()))
        events += [
            ("content_block_stop", '{"index":0}'),
            ("message_delta", '{"delta":{"stop_reason":"tool_use"}}'),
            ("message_stop", "{}"),
        ]
        (done,) = [event for event in fed(events) if isinstance(event, BlockDone)]
        dumps(done.block).decode()
        command = done.block["input"]
        assert isinstance(command, dict)
        str(command["command"]).encode()


def fed(events: list[tuple[str, str]]) -> list[object]:
    accumulator, splitter = Accumulator(), SseSplitter()
    stream = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in events).encode()
    return [event for name, data in splitter.feed(stream) for event in accumulator.feed(name, loads_object(data))]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    substrate = in_memory(server=FakeServer())
    yield Client(substrate, Settings(home=Path("/nowhere")))
    await substrate.aclose()


@every
async def test_a_client_is_told_where_it_stands_before_anything_is_stored(
    lone: str, client: Client, tmp_path: Path
) -> None:
    wrong = [
        (lone, JobOptions(cwd=tmp_path)),
        ("go", JobOptions(cwd=tmp_path, title=lone)),
        ("go", JobOptions(cwd=tmp_path, model=lone)),
        ("go", JobOptions(cwd=tmp_path, allowed_tools=(f"Bash({lone})",))),
        ("go", JobOptions(cwd=tmp_path, idempotency_key=lone)),
    ]
    for prompt, options in wrong:
        with pytest.raises(UsageError, match="UTF-8"):
            await client.submit(prompt, options)
    assert await client.list() == ()
    job = await client.submit("go", JobOptions(cwd=tmp_path))
    with pytest.raises(UsageError, match="UTF-8"):
        await job.send(lone)
    with pytest.raises(UsageError, match="UTF-8"):
        await job.stop(lone)
    assert not (await client.get(job.id)).state.terminal


async def test_a_workspace_whose_name_is_no_text_is_refused(client: Client, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    with pytest.raises(UsageError, match="UTF-8"):
        await client.submit("go", JobOptions(cwd=odd))


async def test_bytes_on_the_command_line_are_one_clear_line(tmp_path: Path) -> None:
    bad = os.fsdecode(b"caf\xe9")
    folder = tmp_path / bad
    folder.mkdir()
    async with EmbeddedServer.start(tmp_path / "server") as server:
        environ = {"HOME": str(tmp_path), "CELERIAC_HOME": str(tmp_path / "home"), "CELERIAC_REDIS_URL": server.url}
        line = CommandLine(tmp_path, environ)
        job = line.run("submit", "go").out.strip()
        for arguments in (
            ("submit", bad),
            ("submit", "go", "--cwd", str(folder)),
            ("submit", "go", "--model", bad),
            ("submit", "go", "--allowed-tools", f"Bash({bad})"),
            ("submit", "go", "--idempotency-key", bad),
            ("submit", "go", "--replay", str(folder / "replay")),
            ("send", job, bad),
            ("stop", job, "--reason", bad),
            ("show", f"s-{bad}"),
            ("run", bad, "--output-format", "json"),
        ):
            said = line.run(*arguments)
            assert said.code in {2, 5}, (arguments, said)
            assert said.err.startswith("celeriac: ") and said.err.count("\n") == 1, (arguments, said.err)
        inside = CommandLine(folder, environ).run("submit", "go")
        assert inside.code == 2 and "UTF-8" in inside.err, inside
        assert len(line.run("list").out.splitlines()) <= 2


async def test_a_tool_that_shows_a_file_with_such_a_name_gives_text(hands: Hands) -> None:
    (hands.root / os.fsdecode(b"a\xff.txt")).write_bytes(b"needle \xff\xed\xa0\xbd\n")
    for name, raw in (
        ("Glob", {"pattern": "*"}),
        ("Grep", {"pattern": "needle", "output_mode": "content"}),
        ("Read", {"file_path": "a\udcff.txt"}),
        ("Bash", {"command": "ls; cat a*; printf '\\xf0\\x9f\\x98'", "description": "look"}),
        ("Bash", {"command": 'python3 -c "print(chr(0x1F600) * 60000)"', "description": "cut"}),
    ):
        result = await hands.call(name, dict(raw))
        result.text.encode()
        dumps(text_block(result.text)).decode()
    "".join(hands.shown).encode()
