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

_STYLES = {
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.STOPPED: "yellow",
    State.RUNNING: "cyan",
    State.PRODUCING_OUTPUT: "cyan",
}


_FIXED = {"task": 11, "kind": 7, "state": 9, "run": 3, "tokens": 7, "time": 6}
"""Columns that keep their width, in characters, when the terminal is narrow: title and activity shrink."""


class LiveList:
    """A table that is drawn over itself; it stays as the last frame when it ends."""

    def __init__(self, stream: TextIO, *, width: int | None = None) -> None:
        """Draw on `stream`, which is a terminal; `width` in columns, None: the terminal's own."""
        self._live = Live(console=Console(file=stream, width=width), auto_refresh=False)

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
        for heading, width in _FIXED.items():
            table.add_column(heading, no_wrap=True, min_width=width)
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
        Text(record.state.value.partition("_")[0], style=_STYLES.get(record.state, "")),
        Text(str(record.run)),
        Text(f"{record.usage.total_tokens:,}"),
        Text(elapsed),
        Text(brief(record.title)),
        Text(brief(activity), style="dim"),
    )


def _short(task_id: TaskId) -> str:
    """The last 6 characters, which tell the tasks of one job apart."""
    kind, _, rest = task_id.partition("-")
    return f"{'' if kind == 's' else ' '}{kind}-…{rest[-6:]}"
