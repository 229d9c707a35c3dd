"""How a task reads in Flower's list. Knows the texts that we send with a task, nothing of Flower's pages."""

from typing import Protocol, TypeVar

KIND_WORDS = frozenset({"session", "agent", "remote", "shell", "teammate", "dream"})


class Shown(Protocol):
    """What of Flower's task object is rewritten for display."""

    name: str | None
    args: str | None
    kwargs: str | None


S = TypeVar("S", bound=Shown)


def format_task(task: S) -> S:
    """Show `agent: Fix the failing test` as the name: it was sent as the text of the arguments, which hold ids only."""
    text = (task.args or "").strip("()'\", ")
    kind, separator, title = text.partition(": ")
    if separator and kind in KIND_WORDS:
        task.name = f"{kind}: {title}"
        task.args = title
    task.kwargs = ""
    return task
