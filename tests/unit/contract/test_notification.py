"""The notification is lossless after cleaning, and nothing in a result can leave it (C08, C31, C50, C85)."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract import ids
from celeriac.common.contract.errors import BadNotification
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.notification import (
    RESULT_LIMIT,
    Notification,
    NotificationUsage,
    clean,
    of_outcome,
    parse,
    render,
)
from celeriac.common.contract.task import Outcome, State, Subtype, Usage

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "notification.json").read_text())["cases"]
TASK = ids.child(ids.new_session(), Kind.AGENT, "toolu_1")


def notification(text: str) -> Notification:
    usage = NotificationUsage(total_tokens=1, tool_uses=2, duration_ms=3)
    return Notification(task_id=TASK, status="completed", summary=text, result=text, usage=usage)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: repr(vector["text"])[:30])
def test_a_vector_comes_back_cleaned(vector: dict[str, str]) -> None:
    assert clean(vector["text"]) == vector["cleaned"]
    xml = render(notification(vector["text"]))
    again = parse(xml)
    assert (again.result, again.summary) == (vector["cleaned"], vector["cleaned"])
    assert (xml.count("<task-notification>"), xml.count("<status>"), xml.count("<task-id>")) == (1, 1, 1)
    assert ElementTree.fromstring(xml).findtext("result", "") == vector["cleaned"]


@given(st.text(st.characters(codec=None)))
def test_any_text_comes_back_cleaned(text: str) -> None:
    assert parse(render(notification(text))).result == clean(text)
    assert clean(clean(text)) == clean(text)


def test_result_and_usage_may_be_missing() -> None:
    bare = Notification(task_id=TASK, status="killed", summary="stopped")
    assert parse(render(bare)) == bare


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "junk",
        "<task-notification>",
        "<other></other>",
        "<task-notification></task-notification>",
        "<task-notification><task-id>a</task-id><status>odd</status><summary/></task-notification>",
        "<!DOCTYPE x [<!ENTITY e 'x'>]><task-notification><task-id>&e;</task-id></task-notification>",
        "<task-notification><task-id>a</task-id><task-id>b</task-id><status>failed</status></task-notification>",
        "<task-notification><task-id>a</task-id><status>failed</status><usage><total_tokens>x</total_tokens></usage>"
        "</task-notification>",
    ],
)
def test_what_is_no_notification_is_refused(xml: str) -> None:
    with pytest.raises(BadNotification):
        parse(xml)


def test_a_partial_result_says_so_and_a_long_one_is_cut() -> None:
    partial = Outcome(
        state=State.FAILED, subtype=Subtype.MAX_TURNS, reason="the limit", text="half", partial=True, usage=Usage()
    )
    assert of_outcome(TASK, "Do it", partial).result == "[partial: error_max_turns]\nhalf"
    whole = Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text="a" * 50_000 + "b" * 50_000)
    cut = of_outcome(TASK, "Do it", whole).result
    assert cut is not None and len(cut) <= RESULT_LIMIT
    assert cut.startswith("aaa") and cut.endswith("bbb") and f"celeriac result {TASK}" in cut


def test_the_limit_is_of_what_is_read_not_of_what_came() -> None:
    invisible = Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text="\u200b" * RESULT_LIMIT)
    read = parse(render(of_outcome(TASK, "Do it", invisible))).result
    assert read is not None and len(read) <= RESULT_LIMIT and read.startswith("[U+200B][U+200B]")


def test_the_summary_is_one_line_and_counts_this_run() -> None:
    outcome = Outcome(
        state=State.STOPPED,
        subtype=Subtype.EXECUTION,
        reason="a\nb",
        usage=Usage(input_tokens=1, cache_creation_input_tokens=2, cache_read_input_tokens=3, output_tokens=4),
        duration_ms=9,
    )
    told = of_outcome(TASK, "Fix\nthe bug", outcome)
    assert told.summary == '"Fix the bug" was stopped: a b'
    assert told.status == "killed"
    assert told.usage == NotificationUsage(total_tokens=10, tool_uses=0, duration_ms=9)
    assert not re.search(r"<result>", render(told))
