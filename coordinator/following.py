"""Reading a session's events without a gap or a double, whatever happens to the connection. Knows the substrate only.

The place of a follower is the id of the last event that it was given: it moves only with what has really arrived.
"""

from collections.abc import AsyncGenerator, Sequence

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.events import Event
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.task import Record
from celeriac.common.substrate.events import FollowEntry
from celeriac.common.substrate.store import Substrate

FOLLOW_BLOCK_MS = 1000
"""How long one read of the events waits; bounds how late the end of a job whose last event was lost is seen."""

END_OF_RUN = "result"
"""Type of the follow entry that ends a run."""


async def follow(substrate: Substrate, task_id: TaskId, after: str) -> AsyncGenerator[Event, None]:
    """The events of the task's session after the id `after`, until the session has ended and all are read.

    Where events are no longer kept, a system event `events_trimmed` stands. Raises NotFound, and ServerUnreachable when
    the server stays away longer than the connection's patience.
    """
    session, cursor = ids.session_of(task_id), after
    ended = (await substrate.records.get(session)).state.terminal
    while True:
        entries = await _read(substrate, session, cursor, block_ms=None if ended else FOLLOW_BLOCK_MS)
        if not entries and ended:
            return
        if entries and (gap := await substrate.events.trimmed(session, cursor)) is not None:
            yield gap
        for _, entry in entries:
            yield await substrate.events.expand(entry)
        cursor = entries[-1][0] if entries else cursor
        if not entries or any(entry.type == END_OF_RUN and entry.task_id == session for _, entry in entries):
            ended = (await substrate.records.get(session)).state.terminal


async def output(
    substrate: Substrate, task_id: TaskId, after: str, *, until_end: bool
) -> AsyncGenerator[tuple[str, str], None]:
    """(place, piece) of the task's live output after the place `after`: what is there, or until the task has ended and
    all is read. Raises NotFound, ServerUnreachable."""
    place = after
    while True:
        waits = until_end and not (await substrate.records.get(task_id)).state.terminal
        try:
            found = await substrate.events.pieces(task_id, place, block_ms=FOLLOW_BLOCK_MS if waits else None)
        except ServerUnreachable:
            if not waits:
                raise
            continue  # the record is asked for with patience, where a blocked read has none
        if not found and not waits:
            return
        for place, piece in found:
            yield place, piece


async def until_ended(substrate: Substrate, task_id: TaskId) -> Record:
    """The record of the task when it has ended. Raises NotFound, ServerUnreachable."""
    session = ids.session_of(task_id)
    cursor = await substrate.events.last_id(session)
    while not (record := await substrate.records.get(task_id)).state.terminal:
        entries = await _read(substrate, session, cursor, block_ms=FOLLOW_BLOCK_MS)
        cursor = entries[-1][0] if entries else cursor
    return record


async def _read(
    substrate: Substrate, session: TaskId, after: str, *, block_ms: int | None
) -> Sequence[tuple[str, FollowEntry]]:
    """Read events; a server that is away is waited for. Raises ServerUnreachable when it stays away."""
    try:
        return await substrate.events.read(session, after, block_ms=block_ms)
    except ServerUnreachable:
        await substrate.records.get(session)  # has patience, where a blocked read has none
        return ()
