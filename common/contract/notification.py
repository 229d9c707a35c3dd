"""The task notification and its XML form: one renderer, one parser, lossless after cleaning (SPEC 3, SECURITY).

Only this system builds notifications, from records. The text of a result is data: nothing in it can close a tag.
"""

import re
from typing import Literal
from xml.etree import ElementTree

from celeriac.common.contract.errors import BadNotification
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.task import Outcome, State, Value

RESULT_LIMIT = 30_000
"""Characters of `<result>` (SPEC 3): head and tail stay, then a reference."""
OPENING_TAG = "<task-notification>"

Status = Literal["completed", "failed", "killed"]
_STATUS: dict[State, Status] = {State.COMPLETED: "completed", State.FAILED: "failed", State.STOPPED: "killed"}

_ILLEGAL = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 forbids; CR is gone before this is applied."""
_INVISIBLE = re.compile("[\u200b\u2060\ufeff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


class NotificationUsage(Value):
    """What the notified run used."""

    total_tokens: int = 0
    tool_uses: int = 0
    duration_ms: int = 0


class Notification(Value):
    """One end of one run, as the parent is told of it."""

    task_id: TaskId
    status: Status
    summary: str
    result: str | None = None
    usage: NotificationUsage | None = None


def clean(text: str) -> str:
    """Make any text safe for XML and for eyes: line ends, illegal characters, invisible and bidirectional marks."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _ILLEGAL.sub("\ufffd", text)
    return _INVISIBLE.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


def _escape(text: str) -> str:
    return clean(text).replace("&", "&amp;").replace("<", "&lt;").replace("]]>", "]]&gt;")


def render(notification: Notification) -> str:
    """The XML text that goes into the parent's transcript."""
    lines = [
        OPENING_TAG,
        f"<task-id>{_escape(notification.task_id)}</task-id>",
        f"<status>{notification.status}</status>",
        f"<summary>{_escape(notification.summary)}</summary>",
    ]
    if notification.result is not None:
        lines.append(f"<result>{_escape(notification.result)}</result>")
    if (usage := notification.usage) is not None:
        fields = "".join(f"<{name}>{value}</{name}>" for name, value in usage.model_dump().items())
        lines.append(f"<usage>{fields}</usage>")
    return "\n".join([*lines, "</task-notification>"])


def parse(xml: str) -> Notification:
    """Read one rendered notification. `result` and `usage` may be missing. Raises BadNotification."""
    if not xml.lstrip().startswith(OPENING_TAG):  # also refuses a document type, so no entity is ever expanded
        raise BadNotification(f"not a notification: it does not begin with {OPENING_TAG}")
    try:
        root = ElementTree.fromstring(xml.strip())  # noqa: S314 - no DOCTYPE can precede the opening tag
        return _from_element(root)
    except (ElementTree.ParseError, ValueError) as error:
        raise BadNotification(f"not a notification: {error}") from error


def _from_element(root: ElementTree.Element) -> Notification:
    children = {child.tag: child for child in root}
    if len(children) != len(root):
        raise BadNotification("not a notification: an element stands twice")
    texts = {tag: child.text or "" for tag, child in children.items()}
    usage = children.get("usage")
    return Notification.model_validate(
        {
            "task_id": texts.get("task-id"),
            "status": texts.get("status"),
            "summary": texts.get("summary", ""),
            "result": texts.get("result"),
            "usage": None if usage is None else {child.tag: int(child.text or "0") for child in usage},
        }
    )


def bounded(text: str, reference: str) -> str:
    """At most RESULT_LIMIT characters: head, a mark that tells what was left out and where the whole is, tail."""
    if len(text) <= RESULT_LIMIT:
        return text
    mark = f"\n[… {len(text) - RESULT_LIMIT} or more characters left out; whole result: {reference} …]\n"
    room = RESULT_LIMIT - len(mark)
    return text[: room - room // 3] + mark + text[-(room // 3) :]


def of_outcome(task_id: TaskId, title: str, outcome: Outcome) -> Notification:
    """Build the notification of an ended run from its record."""
    status = _STATUS[outcome.state]
    result = outcome.text
    if outcome.partial and result is not None:
        result = f"[partial: {_partial_word(outcome)}]\n{result}"
    return Notification(
        task_id=task_id,
        status=status,
        summary=_summary(title, status, outcome.reason),
        result=None if result is None else bounded(clean(result), f"celeriac result {task_id}"),
        usage=NotificationUsage(
            total_tokens=outcome.usage.total_tokens,
            tool_uses=outcome.usage.tool_uses,
            duration_ms=outcome.duration_ms,
        ),
    )


def _partial_word(outcome: Outcome) -> str:
    return outcome.subtype.value if outcome.state is State.FAILED else "stopped"


def _summary(title: str, status: Status, reason: str) -> str:
    """One human-readable line."""
    words = f'"{" ".join(title.split())}" {"was stopped" if status == "killed" else status}'
    return f"{words}: {' '.join(reason.split())}" if reason else words
