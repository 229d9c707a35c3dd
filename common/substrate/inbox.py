"""Inboxes: what waits for a task, and sending to it (PROTOCOL 3, send_message). Taking out is the owner's append."""

from collections.abc import Sequence
from typing import cast

import orjson

from celeriac.common.contract import notification
from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.ids import TaskId, kind_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Outcome
from celeriac.common.substrate.connection import Answer, Command, Connection, text, texts
from celeriac.common.substrate.hints import Hints, wake_of
from celeriac.common.substrate.records import Sender, sender_fields
from celeriac.common.substrate.sessions import Sessions
from celeriac.common.substrate.types import Entry, EntryKind, SendStatus, Sent
from celeriac.common.testing.points import point

USER = "user"
"""Sender of a message that no task sent."""
_INFORMATION = {
    EntryKind.LOST: "{task} has not been heard of for a whole lease; it will be taken over.",
    EntryKind.BACK: "{task} is running again.",
}


class Inboxes:
    """The inboxes of all tasks."""

    def __init__(self, connection: Connection, sessions: Sessions, hints: Hints) -> None:
        """`sessions` lists what is reopened; `hints` tells owners."""
        self._connection = connection
        self._sessions = sessions
        self._hints = hints

    async def unread(self, task_id: TaskId) -> tuple[Entry, ...]:
        """Everything in the inbox, oldest first, information entries included; consuming takes a head of this."""
        keys = self._connection.keys
        found = texts(await self._connection.command("LRANGE", keys.task(task_id, "in"), 0, -1))
        if not found:
            return ()
        bodies = await self._connection.command("HMGET", keys.session(task_id, "ent"), *found)
        parsed = [cast("JsonObject", orjson.loads(body)) for body in texts(bodies)]
        notices = await self._notices(found, parsed)
        return tuple(notices.get(entry) or _entry(entry, body) for entry, body in zip(found, parsed, strict=True))

    async def send_message(
        self, task_id: TaskId, message_id: str, text: str, *, op: str, sender: Sender | None
    ) -> Sent:
        """Put a message into the inbox of a task, opening a new run if it has ended.

        `message_id` is without the `m:` of its entry. `sender` None: a client; then a session is listed first. The same
        op again gets the same answer. REFUSED says why in `reason` and changed nothing. RELIST never leaves here.
        Raises LeaseLost if the sender's token does not hold."""
        entry = f"m:{message_id.removeprefix('m:')}"
        header: JsonObject = {"op": op, "entry": entry, **sender_fields(sender)}
        body = orjson.dumps({"text": text, "sender": sender[0] if sender else USER})
        while True:
            if kind_of(task_id) is Kind.SESSION:
                header["version"] = await self._sessions.list(task_id)
            await point("send_message.before", task_id)
            who = sender[0] if sender else None
            answer = await self._connection.script("send_message", task_id, header, body, sender=who)
            await point("send_message.after", task_id)
            # A sweeper sealed a version at least as new as ours: list again, under a newer one.
            if answer.status != SendStatus.RELIST:
                return await self._sent(task_id, answer)

    async def _sent(self, task_id: TaskId, answer: Answer) -> Sent:
        if answer.status == "LOST":
            raise LeaseLost(f"the sender of a message to {task_id} no longer holds its task")
        target = answer.part("target")
        await self._hints.after(target)
        return Sent(
            SendStatus(answer.status), run=answer.count("run"), reason=answer.word("reason"), wake=wake_of(target)
        )

    async def fate(self, session: TaskId, entry_id: str) -> str | None:
        """`consumed TASK AT`, `undeliverable REASON`, or None while it waits."""
        found = await self._connection.command("HGET", self._connection.keys.session(session, "fate"), entry_id)
        return text(found) or None

    async def _notices(self, found: Sequence[str], bodies: Sequence[JsonObject]) -> dict[str, Entry]:
        """The notifications among these entries, built from the records of the ended runs."""
        ends = [(entry, body) for entry, body in zip(found, bodies, strict=True) if entry.startswith("n:")]
        wanted: list[Command] = []
        for _, body in ends:
            task_id = TaskId(str(body["task"]))
            wanted += [
                ("HGET", self._connection.keys.task(task_id, "runs"), cast("int", body["run"])),
                ("HGET", self._connection.keys.task(task_id, "t"), "title"),
            ]
        rows = await self._connection.spread(wanted)
        return {
            entry: _notice(entry, body, text(rows[2 * i]), text(rows[2 * i + 1]))
            for i, (entry, body) in enumerate(ends)
        }


def _notice(entry: str, body: JsonObject, outcome: str, title: str) -> Entry:
    task_id = TaskId(str(body["task"]))
    ended = Outcome.model_validate_json(outcome)
    told = notification.of_outcome(task_id, title, ended)
    if ended.undeliverable:
        late = f"{told.summary}; not delivered, it came too late: {', '.join(ended.undeliverable)}"
        told = told.model_copy(update={"summary": late})
    return Entry(id=entry, kind=EntryKind.NOTIFICATION, text=notification.render(told), sender=task_id)


def _entry(entry: str, body: JsonObject) -> Entry:
    kind = EntryKind(entry.partition(":")[0])
    if kind is EntryKind.MESSAGE:
        return Entry(id=entry, kind=kind, text=str(body["text"]), sender=str(body["sender"]))
    task_id = str(body["task"])
    return Entry(id=entry, kind=kind, text=_INFORMATION[kind].format(task=task_id), sender=task_id)
