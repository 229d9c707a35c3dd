"""The live tree of a job's tasks on a terminal. The only module that loads rich."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import TITLES
from celeriac.common.contract.task import Record, State
from celeriac.coordinator.display import activity_of, standing
from celeriac.coordinator.words import brief, duration

_STYLES = {
    "completed": "green",
    "failed": "red",
    "stopped": "yellow",
    "running": "cyan",
    "producing": "cyan",
    "silent": "yellow",
    "lost": "red",
    "parked": "blue",
    "waiting_human": "magenta",
}

_COLUMNS = {
    "task": (0, 13),
    "kind": (90, 7),
    "state": (0, 13),
    "turns": (80, 5),
    "calls": (100, 5),
    "tokens": (60, 6),
    "time": (50, 5),
}
"""Columns that never shrink: the terminal's width in characters from which on each is shown, and its own least one."""
_ACTIVITY_FROM = 70
"""Below this width a title is all there is room for."""
_OTHER_LINES = 4
"""Lines of the terminal that rows cannot have: heading, the line about hidden rows, the sum, and the cursor's."""
_BAR_WIDTH = 24


def drawable(stream: TextIO) -> bool:
    """Whether lines on this terminal can be drawn over; a dumb one gets plain lines instead."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


class LiveList:
    """A tree that is drawn over itself; it stays as the last frame when it ends."""

    def __init__(self, stream: TextIO, *, width: int | None = None, height: int | None = None) -> None:
        """Draw on `stream`, which is a terminal; `width`, `height` in characters, None: the terminal's own."""
        self._console = Console(file=stream, width=width, height=height)
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, records: Mapping[TaskId, Record], activities: Mapping[TaskId, str]) -> None:
        """Draw these tasks, the session's record first; `activities` are newer than what the records tell."""
        rows = list(records.values())
        width, room = self._console.size.width, max(1, self._console.size.height - _OTHER_LINES)
        shown = _fitting(rows, room)
        parts: list[RenderableType] = [_table(shown, activities, width)]
        if len(shown) < len(rows):
            parts.append(_hidden([record for record in rows if record not in shown]))
        parts.append(_sum(rows, width))
        self._live.update(Group(*parts), refresh=True)


def _fitting(rows: list[Record], room: int) -> list[Record]:
    """As many as there is room for, in their order: what has not ended is kept before what has."""
    if len(rows) <= room:
        return rows
    ranked = sorted(rows[1:], key=lambda record: (record.state.terminal, record.state in _WAITING))
    kept = {rows[0].task_id, *(record.task_id for record in ranked[: room - 1])}
    return [record for record in rows if record.task_id in kept]


_WAITING = frozenset({State.CREATED, State.QUEUED})


def _table(rows: Sequence[Record], activities: Mapping[TaskId, str], width: int) -> Table:
    columns = [name for name, (shown_from, _) in _COLUMNS.items() if width >= shown_from]
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)  # without it, ratios mean nothing
    for name in columns:
        justify: JustifyMethod = "right" if name in {"turns", "calls", "tokens"} else "left"
        table.add_column(name, no_wrap=True, min_width=_COLUMNS[name][1], justify=justify)
    table.add_column("title", no_wrap=True, overflow="ellipsis", ratio=2)
    if width >= _ACTIVITY_FROM:
        table.add_column("activity", no_wrap=True, overflow="ellipsis", ratio=3)
    for number, record in enumerate(rows):
        cells = _cells(record, last=number == len(rows) - 1)
        told = [cells[name] for name in columns] + [Text(brief(record.title))]
        if width >= _ACTIVITY_FROM:
            told.append(Text(brief(activities.get(record.task_id) or activity_of(record)), style="dim"))
        table.add_row(*told)
    return table


def _cells(record: Record, *, last: bool) -> dict[str, Text]:
    """Text, never markup: titles and activities are foreign."""
    state = standing(record)
    return {
        "task": Text(_branch(record, last=last) + _short(record.task_id)),
        "kind": Text(TITLES[record.kind]),
        "state": Text(state if record.run == 1 else f"{state} ({record.run})", style=_STYLES.get(state, "")),
        "turns": Text(str(record.usage.turns)),
        "calls": Text(str(record.usage.tool_uses)),
        "tokens": Text(f"{record.usage.total_tokens:,}"),
        "time": Text(_elapsed(record)),
    }


def _elapsed(record: Record) -> str:
    """Since the task was created, by the server's clock."""
    end = record.times.ended if record.state.terminal else record.read_at
    return duration(max(0, end - record.times.created)) if record.times.created else ""


def _branch(record: Record, *, last: bool) -> str:
    if record.parent is None:
        return ""
    return "└─ " if last else "├─ "


def _short(task_id: TaskId) -> str:
    """The last 6 characters, which tell the tasks of one job apart."""
    return f"{task_id.partition('-')[0]}-…{task_id[-6:]}"


def _hidden(rows: Sequence[Record]) -> Text:
    counts = Counter(standing(record) for record in rows)
    return Text(f"… {len(rows)} more: {', '.join(f'{count} {state}' for state, count in counts.items())}", style="dim")


def _sum(rows: Sequence[Record], width: int) -> RenderableType:
    """How far the job is: a bar of ended tasks, their number, tokens and time of the whole."""
    tasks = [record for record in rows if record.parent is not None]
    ended = sum(record.state.terminal for record in tasks)
    tokens = sum(record.usage.total_tokens for record in rows)
    elapsed = _elapsed(rows[0]) if rows else ""
    words = Text(f"{ended} of {len(tasks)} tasks ended · {tokens:,} tokens · {elapsed}", no_wrap=True)
    if not tasks or width < _BAR_WIDTH + len(words) + 2:
        return words
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=len(tasks), completed=ended, width=_BAR_WIDTH), words)
    return line
