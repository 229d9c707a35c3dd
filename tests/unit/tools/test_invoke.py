"""The middleware list: what reaches a tool, what comes back, what is recorded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
import pytest

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Denial, Mode
from celeriac.common.policy.decide import Answer, Approvals, Policy, Question, StandardPermissions
from celeriac.common.policy.hooks import NOTHING, HookEvent, HookName, HookOutcome
from celeriac.common.testing.hands import Hands
from celeriac.common.tools.base import Call, Described, Restart, ToolContext, ToolInput, ToolResult
from celeriac.common.tools.bounds import bounded
from celeriac.common.tools.invoke import Invoke
from celeriac.common.tools.toolbox import Toolbox
from celeriac.workers.shell.commands import Commands
from celeriac.workers.tools import worker_tools


class SaysInput(ToolInput):
    command: str = ""
    times: int = 1


class Says(Described[SaysInput]):
    """Stands in for Bash: gives back, or fails as it is told."""

    wire_name = "Bash"
    input = SaysInput
    description = "Says it."
    timeout_s = 0.2
    max_chars = 1000

    async def run(self, i: SaysInput, ctx: ToolContext) -> ToolResult:
        if i.command == "fail":
            raise ValueError("broken inside")
        if i.command == "lost":
            raise LeaseLost("gone")
        if i.command == "hang":
            await asyncio.Event().wait()
        if i.command == "timeout of its own":
            raise TimeoutError("its own")
        return ToolResult(i.command * i.times)


@dataclass
class Spy:
    """Journal, hooks and approvals in one, with a log of what came when."""

    log: list[str] = field(default_factory=list)
    hook: Callable[[HookEvent], HookOutcome] = lambda _: NOTHING
    allowed: bool = False
    results: list[ToolResult] = field(default_factory=list)
    refuse_start: Exception | None = None

    async def started(self, call: Call, ctx: ToolContext) -> None:
        self.log.append("started")
        if self.refuse_start is not None:
            raise self.refuse_start

    async def done(self, call: Call, result: ToolResult, ctx: ToolContext) -> None:
        self.log.append("done")
        self.results.append(result)

    async def trigger(self, event: HookEvent) -> HookOutcome:
        self.log.append(event.name.value)
        return self.hook(event)

    async def ask(self, question: Question) -> Answer:
        self.log.append("asked")
        return Answer(self.allowed, "the reviewer")


class Bench:
    """An `Invoke` over two tools, its spy and what it recorded."""

    def __init__(self, hands: Hands, *, allow: tuple[str, ...] = ("Bash",), approvals: bool = False) -> None:
        self.spy, self.denials = Spy(), list[Denial]()
        self.context = hands.context()
        asked: Approvals | None = self.spy if approvals else None
        self.invoke = Invoke(
            toolbox=Toolbox([Says(), *worker_tools(Commands(None), {})[:1]], kind=Kind.AGENT),
            permissions=StandardPermissions(),
            policy=Policy(mode=Mode.DEFAULT, allow=allow),
            hooks=self.spy,
            journal=self.spy,
            denials=self.denials,
            approvals=asked,
        )

    async def call(self, name: str, **raw: str | int) -> ToolResult:
        given: JsonObject = dict(raw.items())
        return await self.invoke(Call("toolu_1", name, given), self.context)


@pytest.fixture
def bench(hands: Hands) -> Bench:
    return Bench(hands)


async def test_the_order_of_a_state_changing_call(bench: Bench) -> None:
    assert (await bench.call("Bash", command="hi")).text == "hi"
    assert bench.spy.log == ["PreToolUse", "started", "PostToolUse", "done"]


async def test_a_read_only_call_is_not_journalled(bench: Bench, hands: Hands) -> None:
    (hands.root / "f").write_text("x\n")
    assert "x" in (await bench.call("Read", file_path="f")).text
    assert bench.spy.log == ["PreToolUse", "PostToolUse"]


@pytest.mark.parametrize("name", ["Write", "AgentTool", "Shell", "", "bash", "x" * 5000])
async def test_a_tool_that_is_not_in_the_set_is_refused_and_recorded(bench: Bench, name: str) -> None:
    result = await bench.call(name, command="hi")
    assert result.is_error
    assert "Bash" in result.text
    assert [denial.tool_name for denial in bench.denials] == [name]
    assert bench.spy.log == []


async def test_bad_input_is_one_clear_text(bench: Bench) -> None:
    result = await bench.call("Bash", command=3, tmies=2)
    assert result.is_error
    assert "command: " in result.text
    assert "tmies: " in result.text
    assert "Traceback" not in result.text
    assert "\n" not in result.text
    assert bench.denials == []


async def test_a_denied_call_never_starts(hands: Hands) -> None:
    bench = Bench(hands, allow=())
    result = await bench.call("Bash", command="hi")
    assert result.is_error
    assert "nobody is there" in result.text
    assert bench.spy.log == ["PreToolUse"]
    assert len(bench.denials) == 1


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_question_is_decided_by_whoever_is_there(hands: Hands, allowed: bool) -> None:
    bench = Bench(hands, allow=(), approvals=True)
    bench.spy.allowed = allowed
    result = await bench.call("Bash", command="hi")
    assert result.is_error is not allowed
    assert "asked" in bench.spy.log
    assert len(bench.denials) == (not allowed)


async def test_a_failure_is_told_and_recorded(bench: Bench) -> None:
    result = await bench.call("Bash", command="fail")
    assert result.is_error
    assert "broken inside" in result.text
    assert bench.spy.results == [result]
    assert "its own" in (await bench.call("Bash", command="timeout of its own")).text


async def test_a_time_limit_is_told(bench: Bench) -> None:
    result = await bench.call("Bash", command="hang")
    assert result.is_error
    assert "timed out after 0.2 s" in result.text
    assert bench.spy.results == [result]


async def test_only_a_lost_lease_and_a_cancellation_pass_through(bench: Bench) -> None:
    with pytest.raises(LeaseLost):
        await bench.call("Bash", command="lost")
    bench.spy.refuse_start = LeaseLost("gone")
    with pytest.raises(LeaseLost):
        await bench.call("Bash", command="hi")
    bench.spy.refuse_start = ConnectionError("no server")
    assert (await bench.call("Bash", command="hi")).is_error
    bench.spy.refuse_start = None
    running = asyncio.create_task(bench.call("Bash", command="hang"))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_permission_judges_what_hooks_have_made_of_it(bench: Bench) -> None:
    def rewrite(event: HookEvent) -> HookOutcome:
        return HookOutcome(rewrite={"command": "sudo rm"}) if event.name is HookName.PRE_TOOL_USE else NOTHING

    bench.spy.hook = rewrite
    assert "never allowed" in (await bench.call("Bash", command="hi")).text
    assert "started" not in bench.spy.log


async def test_a_hook_blocks_adds_context_and_may_fail(bench: Bench) -> None:
    def block(event: HookEvent) -> HookOutcome:
        return HookOutcome(block="not today")

    def context(event: HookEvent) -> HookOutcome:
        return HookOutcome(context=("mind the gap",)) if event.name is HookName.POST_TOOL_USE else NOTHING

    def fail(event: HookEvent) -> HookOutcome:
        raise RuntimeError(event.name)

    bench.spy.hook = block
    assert "not today" in (await bench.call("Bash", command="hi")).text
    bench.spy.hook = context
    assert (await bench.call("Bash", command="hi")).text == "hi\nmind the gap"
    bench.spy.hook = fail
    assert (await bench.call("Bash", command="hi")).text == "hi"


async def test_output_is_bounded_and_never_empty(bench: Bench) -> None:
    result = await bench.call("Bash", command="😀", times=5000)
    assert len(result.text.encode()) <= 1000
    assert "20000 bytes" in result.text
    assert bench.spy.results == [result]
    assert (await bench.call("Bash")).text == "(no output)"


@pytest.mark.parametrize("text", ["a\ud83d", "\ude00b", "a\udcff"])
def test_no_lone_surrogate_leaves(text: str) -> None:
    bounded(text, 100).encode()
    orjson.dumps(bounded(text * 1000, 100))


@pytest.mark.parametrize("limit", range(200, 230))
def test_a_cut_never_splits_a_character(limit: int) -> None:
    cut = bounded("😀é" * 500, limit)
    assert len(cut.encode()) <= limit
    assert "\ufffd" not in cut


def test_read_only_is_told_without_running(bench: Bench) -> None:
    told = {
        ("Read", "file_path"): True,
        ("Bash", "command"): False,
        ("Bash", "unknown"): True,
        ("Nothing", "x"): True,
    }
    for (name, argument), read_only in told.items():
        assert bench.invoke.read_only(Call("toolu_1", name, {argument: "x"})) is read_only


def test_the_definitions_are_the_same_bytes_and_free_of_titles() -> None:
    tools = worker_tools(Commands(None), {})
    toolbox = Toolbox(tools, kind=Kind.AGENT)
    assert toolbox.definitions() is toolbox.definitions()
    assert toolbox.definitions() == Toolbox(tools, kind=Kind.AGENT).definitions()
    definitions = orjson.loads(toolbox.definitions())
    assert [each["name"] for each in definitions] == ["Read", "Edit", "Write", "Glob", "Grep", "Bash", "TodoWrite"]
    for each in definitions:
        assert set(each) == {"name", "description", "input_schema"}
        assert each["input_schema"]["type"] == "object"
        assert not {"oneOf", "anyOf", "allOf", "title"} & set(each["input_schema"])
        assert each["description"].strip()
    grep = next(each for each in definitions if each["name"] == "Grep")
    assert {"-i", "-n", "-A", "-B", "-C", "pattern", "output_mode"} <= set(grep["input_schema"]["properties"])


def test_a_set_holds_only_what_its_form_allows() -> None:
    tools = worker_tools(Commands(None), {})
    assert Toolbox(tools, kind=Kind.SESSION).names == ()
    assert Toolbox(tools, kind=Kind.DREAM).names == ("Read", "Glob", "Grep")
    assert Toolbox(tools, kind=Kind.SHELL).names == ()
    restarts = {name: Toolbox(tools, kind=Kind.AGENT).restart_of(name) for name in ("Read", "Bash", "Edit", "Write")}
    assert restarts == {
        "Read": Restart.RERUN,
        "Bash": Restart.UNKNOWN,
        "Edit": Restart.UNKNOWN,
        "Write": Restart.UNKNOWN,
    }
