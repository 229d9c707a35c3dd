"""The live output of a task, for `logs ID`: so far, or until the task has ended."""

import sys
from contextlib import aclosing
from typing import TextIO

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.settings import Settings
from celeriac.common.substrate.events import START
from celeriac.coordinator.commands import options
from celeriac.coordinator.words import harmless


def show_output(text: str, *, follow: bool, lines: int | None, redis_url: str | None) -> int:
    """Print the output of the task with this id; `lines`: only so many of those that are there now. Raises BadId,
    NotFound, ServerUnreachable."""
    task_id = ids.parse(text)
    settings = options.settings_for({"redis.url": redis_url})
    return options.run_async(_show(settings, task_id, follow=follow, lines=lines))


async def _show(settings: Settings, task_id: TaskId, *, follow: bool, lines: int | None) -> int:
    printer = Printer(sys.stdout)
    try:
        async with options.connect(settings) as client:
            record = await client.get(task_id)
            async with aclosing(client.follow_output(task_id, until_end=False)) as pieces:
                so_far = [found async for found in pieces]
            printer.write(last_lines("".join(piece for _, piece in so_far), lines))
            if follow:
                async with aclosing(client.follow_output(task_id, so_far[-1][0] if so_far else START)) as pieces:
                    async for _, piece in pieces:
                        printer.write(piece)
                record = await client.get(task_id)
    finally:
        printer.end()
    if follow:
        options.streams().say(f"celeriac: {task_id} is {record.state}")
    return 0


def last_lines(text: str, count: int | None) -> str:
    """The last `count` lines; None: all."""
    if count is None:
        return text
    lines = text.splitlines(keepends=True)
    return "".join(lines[max(0, len(lines) - count) :])


class Printer:
    """Writes pieces of text as they come, and a line end after the last if it has none."""

    def __init__(self, out: TextIO) -> None:
        """Nothing is written yet."""
        self._out = out
        self._last = "\n"

    def write(self, piece: str) -> None:
        """At once; nothing that a terminal would obey."""
        if piece:
            self._out.write(harmless(piece))
            self._out.flush()
            self._last = piece[-1]

    def end(self) -> None:
        """Close the last line."""
        if self._last != "\n":
            self._out.write("\n")
            self._out.flush()
