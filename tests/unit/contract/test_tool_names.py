"""The closed tool sets of the forms (SPEC 6), and text that any encoder takes."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import text_block, tool_result_block
from celeriac.common.contract.text import clean_text
from celeriac.common.contract.tool_names import (
    ASYNC_AGENT_ALLOWED,
    COORDINATOR_MODE_ALLOWED,
    TEAMMATE_ALLOWED,
    WORKER_DISALLOWED,
    allowed_for,
    wire_name,
)
from celeriac.common.llm.client import ApiMessage


def test_the_coordinator_has_exactly_four_and_workers_cannot_delegate() -> None:
    assert allowed_for(Kind.SESSION) == {"AgentTool", "SendMessage", "TaskStop", "SyntheticOutput"}
    assert allowed_for(Kind.SHELL) == frozenset()
    for kind in (Kind.AGENT, Kind.REMOTE, Kind.TEAMMATE, Kind.DREAM):
        assert not allowed_for(kind) & WORKER_DISALLOWED
    assert {"SyntheticOutput"} == COORDINATOR_MODE_ALLOWED & ASYNC_AGENT_ALLOWED
    assert len(TEAMMATE_ALLOWED - ASYNC_AGENT_ALLOWED) == 5
    assert allowed_for(Kind.DREAM) == {"Read", "Grep", "Glob"}


def test_names_of_the_sources_are_known() -> None:
    assert [wire_name(name) for name in ("FileRead", "Shell", "Bash", "mcp__a__b")] == [
        "Read",
        "Bash",
        "Bash",
        "mcp__a__b",
    ]


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_sent(text: str) -> None:
    orjson.dumps([text_block(text), tool_result_block("t", text)])
    assert clean_text(text).encode().decode() == clean_text(text)
    ApiMessage.of("user", ({"type": "text", "text": text},)).wire.decode()


def test_a_result_without_text_says_so() -> None:
    assert tool_result_block("t", "")["content"] == "(no output)"
    assert "is_error" not in tool_result_block("t", "x")
