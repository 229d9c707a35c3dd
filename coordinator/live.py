"""The live list of a job's tasks on a terminal. The only module that loads rich."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import TITLES
from celeriac.common.contract.task import Record, State
from celeriac.coordinator.display import activity_of
from celeriac.coordinator.words import brief, duration

FRAMES_PER_SECOND = 4
"""Enough to look alive, little enough for a slow line."""

_STYLES = {
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.STOPPED: "yellow",
    State.RUNNING: "cyan",
    State.PRODUCING_OUTPUT: "cyan",
}


class LiveList:
    """A table that is drawn over itself; it stays as the last frame when it ends."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on `stream`, which is a terminal."""
        self._live = Live(console=Console(file=stream), refresh_per_second=FRAMES_PER_SECOND, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, records: Mapping[TaskId, Record], activities: Mapping[TaskId, str], now_ms: int) -> None:
        """Draw these tasks; `now_ms` is epoch milliseconds, for the time that has passed."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("task", "kind", "state", "run", "tokens", "time"):
            table.add_column(heading, no_wrap=True)
        table.add_column("title", no_wrap=True, overflow="ellipsis", max_width=40)
        table.add_column("activity", no_wrap=True, overflow="ellipsis", ratio=1)
        for record in records.values():
            table.add_row(*_cells(record, activities.get(record.task_id) or activity_of(record), now_ms))
        self._live.update(table, refresh=True)


def _cells(record: Record, activity: str, now_ms: int) -> tuple[Text, ...]:
    """Text, never markup: titles and activities are foreign."""
    end = record.times.ended if record.state.terminal else now_ms
    elapsed = duration(max(0, end - record.times.created)) if record.times.created else ""
    return (
        Text(_short(record.task_id)),
        Text(TITLES[record.kind]),
        Text(record.state.value, style=_STYLES.get(record.state, "")),
        Text(str(record.run)),
        Text(f"{record.usage.total_tokens:,}"),
        Text(elapsed),
        Text(brief(record.title)),
        Text(brief(activity), style="dim"),
    )


def _short(task_id: TaskId) -> str:
    """The whole id of a session; the last 6 characters of a child's, which share the rest."""
    kind, _, rest = task_id.partition("-")
    return task_id if kind == "s" else f"  {kind}-…{rest[-6:]}"
