"""The live list: drawn from records, never from markup in foreign text."""

import io

from celeriac.common.contract import ids
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Limits, Mode, Progress, Record, SessionSpec, State, Times, Usage
from celeriac.coordinator.display import activity_of
from celeriac.coordinator.live import LiveList

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
    )
    return base.model_copy(update=changes)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_list_shows_state_activity_tokens_and_time() -> None:
    terminal = Terminal()
    with LiveList(terminal, width=160) as live:
        live.show({SESSION: record()}, {}, 6000)
    drawn = terminal.getvalue()
    for word in (f"s-…{SESSION[-6:]}", "session", "running", "reads", "1,234", "5.0 s", "[red]Fix[/red] the bug"):
        assert word in drawn


def test_a_newer_activity_wins_over_the_records() -> None:
    terminal = Terminal()
    with LiveList(terminal, width=160) as live:
        live.show({SESSION: record()}, {SESSION: "Bash: pytest"}, 6000)
    assert "Bash: pytest" in terminal.getvalue()


def test_a_waiting_task_says_for_what() -> None:
    assert activity_of(record(asked=True)) == "waits for an answer"
    assert activity_of(record(activities=())) == ""
