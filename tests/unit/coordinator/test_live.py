"""The live list: drawn from records, never from markup in foreign text."""

import io

import pytest
from rich.text import Text

from celeriac.common.contract import ids
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.presence import Presence
from celeriac.common.contract.task import Limits, Mode, Progress, Record, SessionSpec, State, Times, Usage
from celeriac.coordinator.display import activity_of
from celeriac.coordinator.live import LiveList, drawable

SESSION = ids.session_for("t", "k")


def record(**changes: object) -> Record:
    base = Record(
        task_id=SESSION,
        kind=Kind.SESSION,
        session=SESSION,
        parent=None,
        path="s",
        title="[red]Fix[/red] the bug",
        state=State.RUNNING,
        run=1,
        attempt=0,
        fence=1,
        lease=None,
        park=None,
        stop=None,
        workspace=None,
        labels=(),
        mode=Mode.DEFAULT,
        tools=(),
        limits=Limits(),
        spec=SessionSpec(prompt="x"),
        usage=Usage(input_tokens=1234),
        outcome=None,
        times=Times(created=1000),
        progress=Progress(),
        asked=False,
        open_children=0,
        tlen=0,
        unread=0,
        activities=("reads",),
        presence=Presence.ALIVE,
        read_at=6000,
    )
    return base.model_copy(update=changes)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_list_shows_state_activity_tokens_and_time() -> None:
    terminal = Terminal()
    with LiveList(terminal, width=160) as live:
        live.show({SESSION: record()}, {})
    drawn = terminal.getvalue()
    for word in (f"s-…{SESSION[-6:]}", "session", "running", "reads", "1,234", "5.0 s", "[red]Fix[/red] the bug"):
        assert word in drawn


def test_a_newer_activity_wins_over_the_records() -> None:
    terminal = Terminal()
    with LiveList(terminal, width=160) as live:
        live.show({SESSION: record()}, {SESSION: "Bash: pytest"})
    assert "Bash: pytest" in terminal.getvalue()


def test_a_waiting_task_says_for_what() -> None:
    assert activity_of(record(presence=Presence.WAITING_HUMAN)) == "waits for an answer"
    assert activity_of(record(activities=())) == ""


def child(number: int, **changes: object) -> Record:
    task_id = ids.child(SESSION, Kind.AGENT, f"toolu_{number}")
    base = {"task_id": task_id, "kind": Kind.AGENT, "parent": SESSION, "title": f"part {number}"}
    return record(**{**base, **changes})


def drawn(records: list[Record], *, width: int, height: int = 40) -> str:
    terminal = Terminal()
    with LiveList(terminal, width=width, height=height) as live:
        live.show({one.task_id: one for one in records}, {})
    return terminal.getvalue()


def test_the_sum_tells_how_far_the_job_is() -> None:
    ended = child(1, state=State.COMPLETED, times=Times(created=1000, ended=3000))
    text = drawn([record(), ended, child(2)], width=120)
    assert "1 of 2 tasks ended · 3,702 tokens · 5.0 s" in text
    assert "├─ a-…" in text and "└─ a-…" in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_state_and_title_are_always_there(width: int) -> None:
    lines = [Text.from_ansi(line).plain for line in drawn([record(), child(1)], width=width).splitlines()]
    assert max(map(len, lines)) <= width
    assert "running" in "".join(lines) and "title" in "".join(lines)


def test_what_has_ended_gives_way_when_there_are_more_tasks_than_lines() -> None:
    tasks = [child(n, state=State.COMPLETED if n < 20 else State.RUNNING) for n in range(30)]
    text = drawn([record(), *tasks], width=120, height=15)
    assert "part 29" in text and "part 0 " not in text
    assert "… 20 more: 20 completed" in text


def test_what_is_out_of_the_ordinary_stands_in_the_states_place() -> None:
    text = drawn([record(), child(1, presence=Presence.LOST), child(2, presence=Presence.SILENT)], width=160)
    assert "lost" in text and "silent for 6.0 s" in text


def test_a_dumb_terminal_is_not_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert drawable(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not drawable(Terminal())
    assert not drawable(io.StringIO())
