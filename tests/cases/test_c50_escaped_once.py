"""C50: what was escaped for XML is decoded once before anybody reads it as words, and optional parts may be missing."""

import re

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.events import Message, UserEvent
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Line, Origin, text_block
from celeriac.common.contract.notification import Notification, clean, of_outcome, parse, render
from celeriac.common.contract.task import Outcome, State, Subtype
from celeriac.coordinator.commands.views import transcript_text
from celeriac.coordinator.display import event_lines

SESSION = ids.new_session()
TASK = ids.child(SESSION, Kind.AGENT, "toolu_1")
COMMANDS = [
    'grep x 2>/dev/null | head && echo "a&b"',
    "a < b > c & d; echo '&gt; &amp;gt; &#62;' >> out",
    "cat <<'EOF' | sed 's/&/\\&/' >&2",
    'if (a[i]>b && c<d || e]]>f) { x = "&quot;"; }',
    "<div class='a'>&nbsp;©</div>",
    "100% & more",
]
words = pytest.mark.parametrize("words", COMMANDS)


def told(words: str) -> str:
    outcome = Outcome(state=State.FAILED, subtype=Subtype.EXECUTION, reason=words, text=words)
    return render(of_outcome(TASK, words, outcome))


@words
def test_the_model_reads_each_character_escaped_at_most_once(words: str) -> None:
    xml = told(words)
    again = parse(xml)
    assert again.result == words
    assert again.summary == f'"{words}" failed: {words}'
    body = re.search(r"<result>(.*?)</result>", xml, re.DOTALL)
    assert body is not None
    unescaped = body[1].replace("]]&gt;", "]]>").replace("&lt;", "<").replace("&amp;", "&")
    assert unescaped == words
    assert render(parse(xml)) == xml, "reading and writing again changes nothing"


@words
def test_people_read_it_decoded(words: str) -> None:
    content = (text_block(told(words)),)
    event = UserEvent(
        session_id=SESSION, task_id=SESSION, message=Message(role="user", content=content), origin="notification"
    )
    line = Line(run=1, turn=1, role="user", content=content, origin=Origin.NOTIFICATION, seq=3, token="1/a", time=1)
    (live,) = event_lines(event, "title")
    stored = "\n".join(transcript_text(line))
    for shown in (live, stored):
        assert f'"{words}" failed: {words}' in shown
    assert stored.endswith(f"\n{words}")


@pytest.mark.parametrize(
    "xml",
    [
        "<task-notification><task-id>{id}</task-id><status>killed</status><summary>s</summary></task-notification>",
        "<task-notification><task-id>{id}</task-id><status>killed</status></task-notification>",
        "<task-notification><task-id>{id}</task-id><status>killed</status><summary/><result/></task-notification>",
        "<task-notification><task-id>{id}</task-id><status>killed</status><usage/></task-notification>",
        "<task-notification><task-id>{id}</task-id><status>killed</status><usage><tool_uses>3</tool_uses></usage>"
        "</task-notification>",
        "  <task-notification>\n <usage/><status>killed</status>\n<task-id>{id}</task-id>\n</task-notification>\n",
    ],
)
def test_optional_parts_may_be_missing_or_empty(xml: str) -> None:
    read = parse(xml.replace("{id}", TASK))
    assert (read.task_id, read.status) == (TASK, "killed")
    assert parse(render(read)) == read


@pytest.mark.parametrize("result", [None, "", " ", "\n"])
def test_no_result_and_an_empty_one_are_told_apart(result: str | None) -> None:
    told = Notification(task_id=TASK, status="completed", summary="s", result=result)
    assert parse(render(told)) == told
    assert ("<result>" in render(told)) is (result is not None)


@words
def test_what_is_already_escaped_stays_what_it_is(words: str) -> None:
    twice = words.replace("&", "&amp;").replace("<", "&lt;")
    assert clean(twice) == twice
    assert parse(told(twice)).result == twice
