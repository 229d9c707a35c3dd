"""What people see of events and results."""

from celeriac.common.contract import ids, notification
from celeriac.common.contract.events import (
    AssistantEvent,
    Event,
    Message,
    ResultEvent,
    SystemEvent,
    UnknownEvent,
    UserEvent,
)
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import text_block, tool_result_block
from celeriac.common.contract.task import State, Subtype, Usage
from celeriac.coordinator.display import decoded, describe_call, event_lines, tree_lines
from celeriac.coordinator.follow import question_in
from celeriac.coordinator.jobs import JobResult, TaskSummary
from celeriac.coordinator.words import brief, duration, harmless

SESSION = ids.session_for("t", "k")
AGENT = ids.child(SESSION, Kind.AGENT, "toolu_1")


def call(name: str, **given: str) -> JsonObject:
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": dict(given)}


def lines(event: Event, title: str = "Fix it") -> list[str]:
    return list(event_lines(event, title))


def said(*blocks: JsonObject) -> AssistantEvent:
    return AssistantEvent(session_id=SESSION, task_id=AGENT, message=Message(role="assistant", content=blocks))


def test_an_event_is_one_line_per_state_call_and_result() -> None:
    status = SystemEvent(session_id=SESSION, task_id=AGENT, run=2, subtype="status", data={"state": "running"})
    assert lines(status) == [f"{AGENT} run 2  running  Fix it"]
    assert lines(said(text_block("I look.\nThen."), call("Bash", command="pytest\n-q"))) == [
        f"{AGENT}  I look. Then.",
        f"{AGENT}  Bash: pytest -q",
    ]
    heard = Message(role="user", content=(tool_result_block("toolu_1", "no such file", is_error=True),))
    assert lines(UserEvent(session_id=SESSION, task_id=AGENT, message=heard)) == [f"{AGENT}  error: no such file"]
    end = ResultEvent(
        session_id=SESSION,
        task_id=AGENT,
        subtype=Subtype.EXECUTION,
        is_error=True,
        state="failed",
        reason="exit 1",
        duration_ms=1200,
        usage=Usage(input_tokens=1000, output_tokens=234),
    )
    assert lines(end) == [f"{AGENT}  failed (exit 1)  Fix it  1,234 tokens, 1.2 s"]
    assert not lines(UnknownEvent(raw={}))


def test_foreign_text_cannot_command_a_terminal() -> None:
    assert "\x1b" not in harmless("\x1b[2Jgone\x9b1m\x07")
    assert harmless("tab\tand\nline") == "tab\tand\nline"
    assert lines(said(call("Bash", command="\x1b]0;owned\x07")))[0].isprintable()
    assert brief("x" * 500).endswith("…")


def test_a_call_is_described_by_its_most_telling_field() -> None:
    assert (
        describe_call(call("AgentTool", kind="sh", description="Find the bug", command="long"))
        == "AgentTool: Find the bug"
    )
    assert describe_call(call("Other", x="1")) == 'Other: {"x": "1"}'
    assert describe_call({"type": "tool_use", "name": "Odd"}) == "Odd"


def test_notifications_are_shown_decoded() -> None:
    told = notification.Notification(task_id=AGENT, status="completed", summary='"Fix" completed', result="a < b & c")
    assert decoded(notification.render(told)) == f'[{AGENT} completed] "Fix" completed\na < b & c'
    assert decoded("<task-notification> broken") == "<task-notification> broken"
    assert decoded("plain") == "plain"


def test_times_read_well() -> None:
    assert [duration(ms) for ms in (0, 9_400, 59_600, 200_000, 7_500_000)] == [
        "0.0 s",
        "9.4 s",
        "60 s",
        "3 min 20 s",
        "2 h 5 min",
    ]


def summary(task_id: ids.TaskId, state: State = State.COMPLETED, runs: int = 1) -> TaskSummary:
    usage = Usage(input_tokens=10, turns=1)
    return TaskSummary(
        task_id=task_id, kind=ids.kind_of(task_id), title="T", state=state, runs=runs, usage=usage, duration_ms=1500
    )


def result(state: State, subtype: Subtype = Subtype.SUCCESS, **more: object) -> JobResult:
    tasks = (summary(SESSION), summary(AGENT, runs=2))
    base = JobResult(task_id=SESSION, session_id=SESSION, state=state, subtype=subtype, tasks=tasks)
    return base.model_copy(update=more)


def test_the_tree_shows_each_task_its_runs_tokens_and_time() -> None:
    session, agent, total = tree_lines(result(State.COMPLETED, usage=Usage(input_tokens=20), duration_ms=2000))
    assert session == f"s   {SESSION}  completed  1 run  10 tokens  1.5 s  T"
    assert agent == f"  a   {AGENT}  completed  2 runs  10 tokens  1.5 s  T"
    assert total == "total: 20 tokens, 2.0 s"


def test_exit_codes_tell_the_truth_about_the_whole_tree() -> None:
    assert result(State.COMPLETED).exit_code == 0
    assert result(State.COMPLETED, tasks=(summary(AGENT, State.RUNNING),)).exit_code == 1
    assert result(State.COMPLETED, replay_unused=("line 3",)).exit_code == 1
    assert result(State.FAILED, Subtype.EXECUTION).exit_code == 1
    assert result(State.FAILED, Subtype.MAX_TURNS, limited=True).exit_code == 3
    assert result(State.STOPPED, Subtype.EXECUTION).exit_code == 6


def test_the_document_is_the_result_line_of_the_ecosystem() -> None:
    document = result(State.COMPLETED, result="42", num_turns=3).document()
    assert {key: document[key] for key in ("type", "subtype", "is_error", "num_turns", "result", "total_cost_usd")} == {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "num_turns": 3,
        "result": "42",
        "total_cost_usd": None,
    }
    assert document["session_id"] == SESSION


def test_only_a_question_of_synthetic_output_is_one() -> None:
    assert question_in([call("SyntheticOutput", kind="question", result="Which?")]) == "Which?"
    assert question_in([call("SyntheticOutput", kind="answer", result="Done")]) is None
