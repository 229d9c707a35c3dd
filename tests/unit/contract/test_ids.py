"""Ids tell their form and session, and are the same for the same call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.common.contract import ids
from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.errors import BadId, IllegalTransition
from celeriac.common.contract.events import SystemEvent, UnknownEvent, parse_event
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import TERMINAL, TRANSITIONS, Lifecycle, Mode, State, narrower

CHILDREN = [kind for kind in Kind if kind is not Kind.SESSION]


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_names_its_kind_and_session(kind: Kind) -> None:
    session = ids.new_session()
    child = ids.child(session, kind, "toolu_1")
    assert ids.kind_of(child) is kind
    assert ids.session_of(child) == session == ids.session_of(session)
    assert ids.parse(child) == child == ids.child(session, kind, "toolu_1")


@given(st.text(max_size=20), st.text(max_size=20))
def test_other_calls_make_other_ids(one: str, other: str) -> None:
    session = ids.session_for("default", "key")
    same = ids.child(session, Kind.AGENT, one) == ids.child(session, Kind.AGENT, other)
    assert same == (one == other)


def test_an_idempotency_key_leads_to_one_session() -> None:
    assert ids.session_for("default", "k") == ids.session_for("default", "k") != ids.session_for("other", "k")


@pytest.mark.parametrize(
    "text",
    ["", "s", "s-", "a-123", "x-0123456789abc", "s-0123456789ABC", "s-0123456789abc0123456789abc", "a-0123456789abc"],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(BadId):
        ids.parse(text)


def test_the_first_message_carries_the_tasks_own_id_and_later_ones_do_not() -> None:
    task = ids.child(ids.new_session(), Kind.AGENT, "toolu_1")
    assert Envelope(task_id=task, run=1).message_id() == task
    later = {Envelope(task_id=task, run=run, attempt=n).message_id() for run, n in [(1, 1), (1, 2), (2, 0), (2, 1)]}
    assert len(later) == 4 and all(message.startswith(f"{task}.") for message in later)


def test_terminal_states_are_left_by_a_new_run_only() -> None:
    task = ids.new_session()
    for state in TERMINAL:
        assert TRANSITIONS[state] == frozenset()
        assert Lifecycle(task, state, 3).reopen() == Lifecycle(task, State.CREATED, 4)
    for state in set(State) - TERMINAL:
        assert {State.STOPPED, State.FAILED} <= TRANSITIONS[state]
        with pytest.raises(IllegalTransition):
            Lifecycle(task, state).reopen()
    with pytest.raises(IllegalTransition):
        Lifecycle(task, State.CREATED).advance(State.COMPLETED)


def test_a_child_gets_the_narrower_mode() -> None:
    assert [mode.width for mode in Mode] == [0, 1, 2, 3, 4]
    assert narrower(Mode.BYPASS, Mode.DEFAULT) is Mode.DEFAULT
    assert narrower(Mode.PLAN, Mode.DONT_ASK) is Mode.PLAN


def test_an_event_of_a_newer_version_is_kept() -> None:
    raw = {"type": "hologram", "task_id": "s-0123456789abc"}
    assert parse_event(dict(raw)) == UnknownEvent(raw=dict(raw))
    session = ids.new_session()
    known = SystemEvent(session_id=session, task_id=session, subtype="status")
    assert parse_event(known.model_dump(mode="json")) == known
