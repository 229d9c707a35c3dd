"""Events for followers, and live output. One stream a session; it names lines and ends, their content is looked up."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, cast

import orjson

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.events import (
    AssistantEvent,
    Event,
    Message,
    ResultEvent,
    SystemEvent,
    UserEvent,
    parse_event,
)
from celeriac.common.contract.ids import TaskId, session_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import Outcome, Subtype
from celeriac.common.substrate.connection import Connection, number, text, texts
from celeriac.common.substrate.transcripts import Transcripts

EntryType = Literal["line", "state", "system", "stream_event", "result"]
START = "0-0"
"""The id before the first event."""
PAGE = 500
"""Events read in one round trip."""
TRIMMED = "events_trimmed"
"""Subtype of the system event that stands where events are no longer kept (events.lua keeps about 100,000)."""
_ID = re.compile(r"\d{1,20}-\d{1,20}")


@dataclass(frozen=True, slots=True)
class FollowEntry:
    """One event, as it is stored."""

    task_id: TaskId
    run: int
    type: EntryType
    seq: int
    """The line's number for `line`, else 0."""
    data: JsonObject
    """`state`: {state}; `system` and `stream_event`: what emit was given; else empty."""
    worker: str = ""
    """The process that held the task."""
    id: str = ""
    """Its place in the stream."""


class _Source(TypedDict):
    session_id: TaskId
    task_id: TaskId
    parent_task_id: TaskId | None
    worker: str
    run: int
    seq: int
    uuid: str
    event_id: str


class Events:
    """The event streams of all sessions."""

    def __init__(self, connection: Connection, transcripts: Transcripts) -> None:
        """`transcripts`: where the content of lines is looked up."""
        self._connection = connection
        self._transcripts = transcripts

    async def read(self, session: TaskId, after: str, *, block_ms: int | None) -> tuple[tuple[str, FollowEntry], ...]:
        """Events after the id `after` (START: from the first), at most PAGE; waits up to `block_ms` for one.

        Raises ServerUnreachable at once when it waits; read again after the last id seen."""
        entries = await self._entries(self._connection.keys.session(session, "ev"), after, block_ms)
        return tuple((name, _follow(name, fields)) for name, fields in entries)

    async def pieces(self, task_id: TaskId, after: str, *, block_ms: int | None) -> tuple[tuple[str, str], ...]:
        """Live output after the place `after` (START: all that is kept), at most PAGE pieces; as `read`."""
        entries = await self._entries(self._connection.keys.task(task_id, "out"), after, block_ms)
        return tuple((name, text(fields[b"chunk"])) for name, fields in entries)

    async def _entries(
        self, key: str, after: str, block_ms: int | None
    ) -> tuple[tuple[str, Mapping[bytes, bytes]], ...]:
        if block_ms is None:
            reply = await self._connection.command("XREAD", "COUNT", PAGE, "STREAMS", key, after)
        else:
            wait = ("BLOCK", max(block_ms, 1))  # 0 would mean for ever
            seconds = block_ms / 1000
            reply = await self._connection.blocked(
                "XREAD", "COUNT", PAGE, *wait, "STREAMS", key, after, seconds=seconds
            )
        streams = cast("list[tuple[object, list[tuple[object, Mapping[bytes, bytes]]]]]", reply or [])
        return tuple((text(name), fields) for _, items in streams for name, fields in items)

    async def trimmed(self, session: TaskId, after: str) -> SystemEvent | None:
        """What a follower is told if events after the id `after` are no longer kept, else None.

        The event's own id is `after`. When exactly those up to `after` are gone it is told too much: that is not
        known."""
        reply = await self._connection.command("XINFO", "STREAM", self._connection.keys.session(session, "ev"))
        pairs = cast("list[object]", reply)
        info = dict(zip(map(text, pairs[::2]), pairs[1::2], strict=True))
        first = text(cast("list[object]", info["first-entry"])[0])
        gone = number(info["entries-added"]) - number(info["length"])
        if gone <= 0 or place(after) >= place(first):
            return None
        reason = f"of {gone} early events only the transcripts tell; the first that is kept is {first}"
        return SystemEvent(
            session_id=session,
            task_id=session,
            uuid=_uuid(session, f"{after}<{first}"),
            event_id=after,
            subtype=TRIMMED,
            data={"after": after, "first": first, "reason": reason},
        )

    async def last_id(self, session: TaskId) -> str:
        """The id of the newest event, from which only later ones are read."""
        key = self._connection.keys.session(session, "ev")
        newest = cast(
            "list[tuple[object, object]]", await self._connection.command("XREVRANGE", key, "+", "-", "COUNT", 1)
        )
        return text(newest[0][0]) if newest else START

    async def expand(self, entry: FollowEntry) -> Event:
        """The runtime event that an entry stands for, with its content."""
        source = await self._source(entry)
        if entry.type == "line" and (lines := await self._transcripts.lines(entry.task_id, entry.seq, entry.seq + 1)):
            return _line_event(lines[0], source)
        if entry.type == "result":
            return await self._result(entry, source)
        if entry.type == "state":
            return SystemEvent(**source, subtype="status", data=entry.data)
        raw = {"type": entry.type, **entry.data, **source}  # also a line that cannot be read
        return parse_event(cast("JsonObject", raw))

    async def output(self, task_id: TaskId, run: int | None = None) -> str:
        """The live output that is kept, of all runs or of one: about its last 10,000 chunks."""
        reply = await self._connection.command("XRANGE", self._connection.keys.task(task_id, "out"), "-", "+")
        entries = cast("list[tuple[object, Mapping[bytes, bytes]]]", reply)
        return "".join(text(fields[b"chunk"]) for _, fields in entries if run is None or int(fields[b"run"]) == run)

    async def activities(self, task_id: TaskId) -> tuple[str, ...]:
        """The 5 most recent activities, newest last."""
        return texts(await self._connection.command("LRANGE", self._connection.keys.task(task_id, "act"), 0, -1))

    async def _source(self, entry: FollowEntry) -> _Source:
        above = await self._connection.ancestors(entry.task_id)
        session = session_of(entry.task_id)
        return {
            "session_id": session,
            "task_id": entry.task_id,
            "parent_task_id": above[0] if above else None,
            "worker": entry.worker,
            "run": entry.run,
            "seq": entry.seq,
            "uuid": _uuid(session, entry.id),
            "event_id": entry.id,
        }

    async def _result(self, entry: FollowEntry, source: _Source) -> ResultEvent:
        key = self._connection.keys.task(entry.task_id, "runs")
        outcome = Outcome.model_validate_json(text(await self._connection.command("HGET", key, entry.run)))
        success = outcome.subtype is Subtype.SUCCESS
        return ResultEvent(
            **source,
            subtype=outcome.subtype,
            is_error=not success,
            state=outcome.state.value,
            result=outcome.text if success else None,
            structured_output=outcome.structured if success else None,
            reason=outcome.reason,
            num_turns=outcome.usage.turns,
            duration_ms=outcome.duration_ms,
            usage=outcome.usage,
            stop_reason=outcome.stop_reason,
            permission_denials=outcome.denials,
        )


def parse_event_id(given: str) -> str:
    """Check what a user gives as the place to go on from. Raises UsageError."""
    if _ID.fullmatch(given.strip()) is None:
        raise UsageError(f"{given!r} is not an event id; it is the event_id of a followed event, such as {START}")
    return given.strip()


def place(event_id: str) -> tuple[int, int]:
    """An event id as numbers, which are in the order of the events."""
    time, _, rest = event_id.partition("-")
    return int(time), int(rest)


def _uuid(session: TaskId, event_id: str) -> str:
    """The same for everybody who reads this event."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session}:{event_id}"))


def _line_event(line: Line, source: _Source) -> AssistantEvent | UserEvent:
    message = Message(role=line.role, content=line.content)
    if line.role == "assistant":
        return AssistantEvent(**source, message=message)
    return UserEvent(**source, message=message, origin=line.origin.value)


def _follow(name: str, fields: Mapping[bytes, bytes]) -> FollowEntry:
    return FollowEntry(
        task_id=TaskId(text(fields[b"task"])),
        run=int(fields[b"run"]),
        type=cast("EntryType", text(fields[b"type"])),
        seq=int(fields[b"seq"]),
        data=cast("JsonObject", orjson.loads(fields[b"data"])),
        worker=text(fields[b"by"]),
        id=name,
    )
