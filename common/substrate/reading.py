"""From the flat Redis hash of PROTOCOL 2 to the read model of INTERFACES. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import orjson
from pydantic import TypeAdapter

from celeriac.common.contract.ids import TaskId, session_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.presence import Presence, Signs, presence_of
from celeriac.common.contract.task import (
    Lease,
    Limits,
    Mode,
    Outcome,
    Park,
    Progress,
    Record,
    Spec,
    State,
    Stop,
    Times,
    Usage,
    Workspace,
)
from celeriac.common.substrate.types import TIMEOUT, NewTask, StoredAnswer

_SPEC: TypeAdapter[Spec] = TypeAdapter(Spec)
WAKING = ("n:", "m:")
"""Entries that count as unread: notifications and messages."""
PROGRESS_FIELDS = ("claimed_at", "token_at", "tool_at")
"""The newest of these is when the run was last heard of."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Everything that one record's read model is made of."""

    fields: Mapping[str, str]
    inbox: Sequence[str]
    activities: Sequence[str]
    outcome: str = ""
    stop: Stop | None = None
    """The effective stop."""

    def count(self, name: str) -> int:
        """An integer field; 0 when absent."""
        return int(self.fields.get(name) or "0")

    def word(self, name: str) -> str:
        """A text field; empty when absent."""
        return self.fields.get(name, "")

    def chain(self) -> tuple[tuple[TaskId, int], ...]:
        """(ancestor, its run), nearest first."""
        return tuple((TaskId(link[0]), int(link[1])) for link in orjson.loads(self.word("chain") or "[]"))


def fixed_fields(task: NewTask) -> dict[str, str]:
    """The fields of a record that never change."""
    return {
        "kind": task.kind.value,
        "parent": task.parent or "",
        "path": task.path,
        "title": task.title,
        "spec": task.spec.model_dump_json(),
        "mode": task.mode.value,
        "tools": orjson.dumps(task.tools).decode(),
        "labels": orjson.dumps(task.labels).decode(),
        "limits": task.limits.model_dump_json(),
        "limit_ms": str(round((task.limits.seconds or 0) * 1000)),
        "workspace": task.workspace.model_dump_json() if task.workspace else "",
    }


def unread(inbox: Sequence[str]) -> int:
    """How many of these entry ids wake."""
    return sum(entry.startswith(WAKING) for entry in inbox)


def stop_of_answer(part: JsonObject | None) -> Stop | None:
    """The stop in a script's answer. A parent that ended by itself stops its children as a user would."""
    if part is None:
        return None
    return Stop(
        kind="limit" if part["kind"] == "limit" else "user",
        reason=str(part["reason"]),
        at_ms=int(cast("int", part["at"])),
    )


def stored_answer(written: str) -> StoredAnswer | None:
    """A question's answer as it is stored; None while there is none."""
    if not written:
        return None
    return TIMEOUT if written == TIMEOUT else cast("JsonObject", orjson.loads(written))


def own_stop(fields: Mapping[str, str], run: int) -> Stop | None:
    """The stop that these fields of a record say about its run `run`; also asked of ancestors."""
    if int(fields.get("stop_upto") or "0") < run:
        return None
    kind = fields.get("stop_kind", "user")
    return Stop(
        kind="limit" if kind == "limit" else "user",
        reason=fields.get("stop_reason", ""),
        at_ms=int(fields.get("stop_at") or "0"),
    )


def record(task_id: TaskId, raw: Raw, *, now_ms: int, silent_ms: int) -> Record:
    """Build the read model, as of the server's time `now_ms`; `silent_ms`: what counts as a silence."""
    return Record(
        task_id=task_id,
        kind=Kind(raw.word("kind")),
        session=session_of(task_id),
        parent=TaskId(raw.word("parent")) if raw.word("parent") else None,
        path=raw.word("path"),
        title=raw.word("title"),
        state=State(raw.word("state")),
        run=raw.count("run"),
        attempt=raw.count("attempts"),
        tries=raw.count("tries"),
        fence=raw.count("fence"),
        lease=_lease(raw),
        park=_park(raw),
        stop=_stop(raw),
        workspace=Workspace.model_validate_json(raw.word("workspace")) if raw.word("workspace") else None,
        labels=tuple(orjson.loads(raw.word("labels"))),
        mode=Mode(raw.word("mode")),
        tools=tuple(orjson.loads(raw.word("tools"))),
        limits=Limits.model_validate_json(raw.word("limits")),
        spec=_SPEC.validate_json(raw.word("spec")),
        usage=Usage.model_validate_json(raw.word("usage") or "{}"),
        outcome=Outcome.model_validate_json(raw.outcome) if raw.outcome else None,
        times=_times(raw),
        progress=Progress(**{name: raw.count(name) for name in ("token_at", "tool_at", "heartbeat_at")}),
        asked=raw.word("asked") == "1",
        open_children=raw.count("open_children"),
        tlen=raw.count("tlen"),
        unread=unread(raw.inbox),
        activities=tuple(raw.activities),
        presence=_presence(raw, now_ms, silent_ms),
        read_at=now_ms,
    )


def _presence(raw: Raw, now_ms: int, silent_ms: int) -> Presence | None:
    signs = Signs(
        terminal=State(raw.word("state")).terminal,
        owned=bool(raw.word("owner")),
        lease_until=raw.count("lease_until"),
        park=raw.word("park"),
        park_at=raw.count("park_at"),
        asked=raw.word("asked") == "1",
        open_children=raw.count("open_children"),
        progress_at=max(map(raw.count, PROGRESS_FIELDS)),
    )
    return presence_of(signs, now_ms=now_ms, silent_ms=silent_ms)


def _stop(raw: Raw) -> Stop | None:
    if raw.stop is None or raw.count("unseen") != raw.count("run"):
        return raw.stop
    return raw.stop.model_copy(update={"confirmed": False})


def _times(raw: Raw) -> Times:
    return Times(**{name: raw.count(f"{name}_at") for name in ("created", "queued", "started", "ended")})


def _lease(raw: Raw) -> Lease | None:
    owner = raw.word("owner")
    return Lease(owner=owner, process=raw.word("proc"), until_ms=raw.count("lease_until")) if owner else None


def _park(raw: Raw) -> Park | None:
    park = raw.word("park")
    if not park:
        return None
    return Park(until=str(raw.count("park_at")) if park == "time" else park, why=raw.word("why"))
