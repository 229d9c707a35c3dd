"""Records: create, look up, stop, settle, send again (PROTOCOL 3). Requests that own no lease."""

import hashlib
from collections.abc import Sequence

from celeriac.common.contract.errors import LeaseLost, NotFound
from celeriac.common.contract.ids import TaskId, session_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Outcome, Record, State, Stop
from celeriac.common.substrate.connection import Command, Connection, mapping, number, text, texts
from celeriac.common.substrate.hints import Hints
from celeriac.common.substrate.reading import Raw, fixed_fields, own_stop, record
from celeriac.common.substrate.sessions import Sessions
from celeriac.common.substrate.types import Created, NewTask, Resend, RunRef, StopAnswer, StopKind, StopStatus
from celeriac.common.testing.points import point

Sender = tuple[TaskId, str]
"""A coordinator that asks: its task and its token."""


class Records:
    """The records of all tasks of one server."""

    def __init__(self, connection: Connection, sessions: Sessions, hints: Hints, *, silent_ms: int) -> None:
        """`sessions` lists what is created; `hints` tells processes; `silent_ms`: what counts as a silence."""
        self._connection = connection
        self._sessions = sessions
        self._hints = hints
        self._silent_ms = silent_ms

    async def create(self, task: NewTask, *, parent_token: str | None) -> Created:
        """Write the record of a new task. A session (no parent, no token) is listed first.

        Repeating it answers EXISTS. Raises LeaseLost if the parent is not held by `parent_token`."""
        ancestors = await self._lineage(task)
        if task.parent is None:
            await self._sessions.list(task.task_id)
        await point("create.before", task.task_id)
        header: JsonObject = {
            "task": task.task_id,
            "parent": task.parent or "",
            "parent_token": parent_token or "",
            "digest": _digest(task),
        }
        fields = [item for pair in fixed_fields(task).items() for item in pair]
        keys = self._connection.keys.script(task.task_id, ancestors)
        answer = await self._connection.patiently(lambda: self._connection.once("create", keys, header, *fields))
        await point("create.after", task.task_id)
        if answer.status == "LOST":
            raise LeaseLost(f"{task.parent} is no longer held by {parent_token}: it may not create {task.task_id}")
        created = Created(answer.status)
        if created in {Created.CREATED, Created.EXISTS}:
            self._connection.remember(task.task_id, ancestors)
        if created is Created.CREATED and task.parent is None:
            if await self._sessions.listed_version(task.task_id) is None:
                await self._sessions.list(task.task_id)  # the client was paused before its create, and dropped
            await self._hints.push_sessions(task.task_id)
        return created

    async def names_another(self, task: NewTask) -> bool:
        """Whether the id of this new task is already that of another request: then `create` answers MISMATCH."""
        found = text(await self._connection.command("HGET", self._record(task.task_id), "digest"))
        return found not in {"", _digest(task)}

    async def _lineage(self, task: NewTask) -> tuple[TaskId, ...]:
        if task.parent is None:
            return ()
        return (task.parent, *await self._connection.ancestors(task.parent))[:2]

    async def mark_queued(self, task_id: TaskId, run: int) -> None:
        """The wake-up of this run was sent. Anything later than `created` stays as it is."""
        await self._connection.script("mark_queued", task_id, {"run": run})

    async def get(self, task_id: TaskId) -> Record:
        """The read model of a record. Raises NotFound."""
        found = await self.find(task_id)
        if found is None:
            raise NotFound(task_id)
        return found

    async def find(self, task_id: TaskId) -> Record | None:
        """The read model of a record, or None."""
        found = await self._load([task_id])
        return found[0] if found else None

    async def tree(self, session: TaskId) -> tuple[Record, ...]:
        """All tasks of the session of `session`, in the order of creation."""
        ids = texts(await self._connection.command("SMEMBERS", self._connection.keys.session(session, "all")))
        numbers = await self._connection.spread([("HGET", self._record(TaskId(task)), "number") for task in ids])
        ordered = [task for _, task in sorted(zip(map(number, numbers), ids, strict=True))]
        return await self._load([TaskId(task) for task in ordered])

    async def outcome(self, task_id: TaskId, run: int) -> Outcome | None:
        """How this run ended, or None while it has not."""
        found = text(await self._connection.command("HGET", self._connection.keys.task(task_id, "runs"), run))
        return Outcome.model_validate_json(found) if found else None

    async def run_count(self, task_id: TaskId) -> int:
        """How many runs of this task have ended."""
        return number(await self._connection.command("HLEN", self._connection.keys.task(task_id, "runs")))

    async def request_stop(
        self,
        task_id: TaskId,
        *,
        kind: StopKind,
        reason: str,
        op: str,
        sender: Sender | None = None,
        run: int | None = None,
    ) -> StopAnswer:
        """Stop the current run and, through it, its whole subtree; every process concerned is poked.

        With `run`, only that run: a later one answers FINISHED. Raises LeaseLost if the sender's token does not
        hold."""
        header: JsonObject = {"kind": kind, "reason": reason, "op": op, **sender_fields(sender)}
        if run is not None:
            header["run"] = run
        await point("request_stop.before", task_id)
        answer = await self._connection.script("request_stop", task_id, header, sender=sender[0] if sender else None)
        await point("request_stop.after", task_id)
        if answer.status == "LOST":
            raise LeaseLost(f"the sender of the stop of {task_id} no longer holds its task")
        await self._hints.after(answer.part("parent"))
        await self.poke(task_id)
        state = State(answer.word("state")) if answer.word("state") else None
        return StopAnswer(StopStatus(answer.status), state, answer.count("run"))

    async def settle_stop(self, task_id: TaskId) -> bool:
        """End a stopped run that nobody works on; True if this call did."""
        await point("settle_stop.before", task_id)
        answer = await self._connection.script("settle_stop", task_id, {})
        await self._hints.after(answer.part("parent"))
        return answer.status == "STOPPED"

    async def descendants(self, task_id: TaskId) -> tuple[TaskId, ...]:
        """The open tasks below this one, in no particular order."""
        return tuple(found for found, _, chain in await self._open(task_id) if task_id in chain)

    async def open_tasks(self, session: TaskId) -> tuple[TaskId, ...]:
        """The tasks of this session that have not ended, itself included; in no particular order."""
        found = await self._connection.command("SMEMBERS", self._connection.keys.session(session, "open"))
        return tuple(TaskId(task) for task in texts(found))

    async def resend(self, task_id: TaskId) -> Resend | None:
        """Whether this task needs another wake-up now: of many supervisors that ask, one gets it."""
        await point("resend.before", task_id)
        answer = await self._connection.script("resend", task_id, {})
        await self._hints.after(answer.part("parent"))
        return Resend(answer.count("run"), answer.count("attempt")) if answer.status == "SEND" else None

    async def overdue(self, session: TaskId) -> tuple[RunRef, ...]:
        """Open runs whose deadline has passed, for a supervisor's request_stop(limit, run=…)."""
        tasks = await self.open_tasks(session)
        rows = await self._connection.spread([("HMGET", self._record(task), "deadline", "run") for task in tasks])
        now = await self.server_time_ms()
        pairs = [(task, texts(row)) for task, row in zip(tasks, rows, strict=True)]
        return tuple(RunRef(task, int(row[1])) for task, row in pairs if row[0] not in {"", "0"} and int(row[0]) <= now)

    async def server_time_ms(self) -> int:
        """The server's clock, epoch milliseconds: what park times and deadlines are measured by."""
        return _milliseconds(await self._connection.command("TIME"))

    async def poke(self, task_id: TaskId) -> None:
        """Hint every process that holds this task or an open task below it."""
        for found, process, chain in await self._open(task_id):
            if process and (found == task_id or task_id in chain):
                await self._hints.push(process, found)

    async def _open(self, task_id: TaskId) -> list[tuple[TaskId, str, tuple[TaskId, ...]]]:
        """(task, process of its owner, ancestors) of every open task of this session."""
        tasks = await self.open_tasks(session_of(task_id))
        rows = await self._connection.spread([("HMGET", self._record(task), "proc", "chain") for task in tasks])
        raws = [Raw(dict(zip(("proc", "chain"), texts(row), strict=True)), (), ()) for row in rows]
        return [
            (task, raw.word("proc"), tuple(link for link, _ in raw.chain()))
            for task, raw in zip(tasks, raws, strict=True)
        ]

    def _record(self, task_id: TaskId) -> str:
        return self._connection.keys.task(task_id, "t")

    async def _load(self, tasks: Sequence[TaskId]) -> tuple[Record, ...]:
        """Read models of those tasks that exist, in the given order: three round trips whatever their number."""
        keys = self._connection.keys
        wanted: list[Command] = []
        for task in tasks:
            wanted += [
                ("HGETALL", self._record(task)),
                ("LRANGE", keys.task(task, "in"), 0, -1),
                ("LRANGE", keys.task(task, "act"), 0, -1),
            ]
        *rows, clock = await self._connection.spread([*wanted, ("TIME",)])
        now_ms = _milliseconds(clock)
        raws = [Raw(mapping(rows[i]), texts(rows[i + 1]), texts(rows[i + 2])) for i in range(0, len(rows), 3)]
        known = [(task, raw) for task, raw in zip(tasks, raws, strict=True) if raw.fields]
        outcomes = await self._connection.spread(
            [("HGET", keys.task(task, "runs"), raw.count("run")) for task, raw in known]
        )
        stops = await self._stops(known)
        return tuple(
            record(
                task,
                Raw(raw.fields, raw.inbox, raw.activities, text(outcome), stop),
                now_ms=now_ms,
                silent_ms=self._silent_ms,
            )
            for (task, raw), outcome, stop in zip(known, outcomes, stops, strict=True)
        )

    async def _stops(self, known: Sequence[tuple[TaskId, Raw]]) -> list[Stop | None]:
        """The effective stop of each record's current run."""
        names = ("stop_upto", "stop_kind", "stop_reason", "stop_at")
        above = sorted({link for _, raw in known for link, _ in raw.chain()})
        rows = await self._connection.spread([("HMGET", self._record(link), *names) for link in above])
        fields = {link: dict(zip(names, texts(row), strict=True)) for link, row in zip(above, rows, strict=True)}
        return [_effective_stop(raw, fields) for _, raw in known]


def _digest(task: NewTask) -> str:
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()


def _milliseconds(time: object) -> int:
    """The reply to TIME as epoch milliseconds."""
    seconds, micros = texts(time)
    return int(seconds) * 1000 + int(micros) // 1000


def _effective_stop(raw: Raw, ancestors: dict[TaskId, dict[str, str]]) -> Stop | None:
    own = own_stop(raw.fields, raw.count("run"))
    if own is not None:
        # A run that ended by itself took its children with it; nobody stopped the run itself.
        return None if raw.word("stop_kind") == "end" else own
    stops = (own_stop(ancestors[link], run) for link, run in raw.chain())
    return next((stop for stop in stops if stop is not None), None)


def sender_fields(sender: Sender | None) -> JsonObject:
    """How a script is told who asks."""
    return {} if sender is None else {"sender": sender[0], "sender_token": sender[1]}
