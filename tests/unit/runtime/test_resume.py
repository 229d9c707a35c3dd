"""Where a run begins, from what a former owner left: pure decisions (PROTOCOL 4, repair)."""

from collections.abc import Mapping

import orjson
import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft, Line, Origin, Role, ToolMeta, text_block, tool_result_block
from celeriac.common.contract.task import Denial, Mode
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.runtime.deps import Tally
from celeriac.common.runtime.executor import DENIED
from celeriac.common.runtime.loop import Start
from celeriac.common.runtime.resume import EFFECT_UNKNOWN, RUN_ENDED, Past, recount, start_of
from celeriac.common.runtime.state import ToolUseContext
from celeriac.common.runtime.turn import answer_blocks
from celeriac.common.substrate.types import Mark, MarkState
from celeriac.common.testing.scripted import tool_use
from celeriac.common.tools.base import Restart

SESSION = ids.new_session()
THINKING: JsonObject = {"type": "thinking", "thinking": "hm", "signature": "s"}
KEPT = tool_result_block("t1", "kept")
STARTED, DONE = Mark(MarkState.STARTED), Mark(MarkState.DONE, orjson.dumps(KEPT))


def line(role: Role, *content: JsonObject, run: int = 1, turn: int = 1, metas: tuple[ToolMeta, ...] = ()) -> Line:
    origin = Origin.MODEL if role == "assistant" else Origin.TOOLS
    return Line(run=run, turn=turn, role=role, content=content, origin=origin, metas=metas, seq=0, token="1/a", time=1)


PROMPT = line("user", text_block("do it"), turn=0)


def start(
    *lines: Line,
    run: int = 1,
    draft: Draft | None = None,
    marks: Mapping[str, Mark] | None = None,
    restart: Restart = Restart.UNKNOWN,
    waits: bool = False,
) -> Start:
    past = Past(SESSION, run, (PROMPT, *lines), draft, marks or {})
    return start_of(past, ToolUseContext(AbortNode(), Mode.DEFAULT), lambda _: restart, waits=waits)


@pytest.mark.parametrize(
    ("mark", "restart", "decided"),
    [
        (None, Restart.UNKNOWN, None),
        (STARTED, Restart.RERUN, None),
        (STARTED, Restart.UNKNOWN, EFFECT_UNKNOWN),
        (DONE, Restart.UNKNOWN, "kept"),
        (DONE, Restart.RERUN, "kept"),
    ],
)
def test_a_call_of_this_run(mark: Mark | None, restart: Restart, decided: str | None) -> None:
    draft = Draft(run=1, turn=3, blocks=(tool_use("t1", "Bash"),))
    begun = start(draft=draft, marks={"t1": mark} if mark else {}, restart=restart)
    assert begun.resumed is not None and (begun.resumed.stored, begun.resumed.turn) == (False, 3)
    assert begun.resumed.presets.get("t1", {}).get("content") == decided


@pytest.mark.parametrize(("mark", "decided"), [(None, RUN_ENDED), (STARTED, EFFECT_UNKNOWN), (DONE, "kept")])
def test_a_call_of_an_ended_run_never_starts(mark: Mark | None, decided: str) -> None:
    draft = Draft(run=1, turn=3, blocks=(tool_use("t1", "Bash"),))
    begun = start(run=2, draft=draft, marks={"t1": mark} if mark else {}, restart=Restart.RERUN)
    assert begun.resumed is not None and begun.resumed.presets["t1"]["content"] == decided
    assert begun.state.turn_count == 0


def test_a_dispatch_of_an_ended_run_names_its_task() -> None:
    draft = Draft(run=1, turn=1, blocks=(tool_use("t1", "AgentTool", kind="sh"), tool_use("t2", "AgentTool", kind="?")))
    begun = start(run=2, draft=draft, marks={"t1": STARTED})
    assert begun.resumed is not None
    assert ids.child(SESSION, Kind.SHELL, "t1") in str(begun.resumed.presets["t1"]["content"])
    assert begun.resumed.presets["t2"]["content"] == RUN_ENDED


def test_a_stored_answer_without_results_is_taken_up() -> None:
    begun = start(line("assistant", tool_use("t1", "Bash")))
    assert begun.resumed is not None and begun.resumed.stored and begun.resumed.presets == {}


def test_a_text_answer_waits_for_news_and_results_ask_the_model() -> None:
    answered = line("assistant", text_block("I wait"))
    called, result = line("assistant", tool_use("t1", "Bash")), line("user", KEPT)
    assert start(answered).waiting and start(answered).resumed is None
    assert not start(called, result).waiting
    assert start(called, result, waits=True).waiting
    assert start(called, result, line("assistant", text_block("x"), run=2)).state.turn_count == 1


def test_what_a_run_has_used_is_counted_again() -> None:
    denial = Denial(tool_name="AgentTool", tool_use_id="t1", reason="no such tool")
    meta = (ToolMeta(tool=DENIED, data=denial.model_dump(mode="json")),)
    lines = (
        line("assistant", text_block("old"), tool_use("t0", "Bash"), run=1),
        line("user", KEPT, run=1, metas=meta),
        line("assistant", text_block("new"), tool_use("t1", "AgentTool"), run=2),
        line("user", KEPT, run=2, metas=meta),
    )
    tally = Tally()
    recount(tally, lines, 2)
    assert (tally.tool_turns, tally.last_text, tally.denials) == (1, "new", [denial])


def test_thinking_at_the_end_of_an_answer_is_not_kept() -> None:
    call = tool_use("t1", "Bash")
    assert answer_blocks([THINKING, call, THINKING]) == (THINKING, call)
    assert answer_blocks([THINKING]) == () and answer_blocks([THINKING, call]) == (THINKING, call)
