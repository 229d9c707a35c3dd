"""The live output of a task, for `logs ID`: so far, or until the task has ended."""

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TextIO

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.settings import Settings
from celeriac.common.substrate.events import START
from celeriac.common.substrate.opening import open_substrate
from celeriac.common.substrate.store import Substrate
from celeriac.coordinator.commands import options
from celeriac.coordinator.servers import no_answer, resolve_url
from celeriac.coordinator.words import harmless

BLOCK_MS = 1000
"""How long one read waits; bounds how late the end of the task is seen."""


def show_output(text: str, *, follow: bool, lines: int | None, redis_url: str | None) -> int:
    """Print the output of the task with this id; `lines`: only so many of those that are there now. Raises BadId,
    NotFound, ServerUnreachable."""
    task_id = ids.parse(text)
    settings = options.settings_for({"redis.url": redis_url})
    return options.run_async(_show(settings, task_id, follow=follow, lines=lines))


async def _show(settings: Settings, task_id: TaskId, *, follow: bool, lines: int | None) -> int:
    url = resolve_url(settings.redis.url, settings.home)
    named = settings.redis.model_copy(update={"url": url})
    substrate = open_substrate(settings.model_copy(update={"redis": named}))
    printer = Printer(sys.stdout)
    try:
        await substrate.ping()
        record = await substrate.records.get(task_id)
        so_far, place = await output_so_far(substrate, task_id)
        printer.write(last_lines(so_far, lines))
        if follow:
            async with aclosing(pieces_until_end(substrate, task_id, place)) as pieces:
                async for piece in pieces:
                    printer.write(piece)
            record = await substrate.records.get(task_id)
    except ServerUnreachable as error:
        raise no_answer(url) from error
    finally:
        await substrate.aclose()
        printer.end()
    if follow:
        options.streams().say(f"celeriac: {task_id} is {record.state}")
    return 0


async def output_so_far(substrate: Substrate, task_id: TaskId) -> tuple[str, str]:
    """The output that is kept, and the place after which it goes on."""
    texts, after = [], START
    while found := await substrate.events.pieces(task_id, after, block_ms=None):
        texts += [piece for _, piece in found]
        after = found[-1][0]
    return "".join(texts), after


async def pieces_until_end(substrate: Substrate, task_id: TaskId, after: str) -> AsyncGenerator[str, None]:
    """Pieces of live output after `after`, until the task is terminal and all are read."""
    while True:
        ended = (await substrate.records.get(task_id)).state.terminal
        try:
            found = await substrate.events.pieces(task_id, after, block_ms=None if ended else BLOCK_MS)
        except ServerUnreachable:
            continue  # the record is asked for with patience, where a blocked read has none
        if not found and ended:
            return
        for place, piece in found:
            after = place
            yield piece


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
