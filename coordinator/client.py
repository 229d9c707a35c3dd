"""The client: submits jobs, follows them, talks to them, stops them.

Knows the substrate only. Coordinator processes are woken by hints; whatever a lost hint delays, their scan finds.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from celeriac.common.contract import ids
from celeriac.common.contract.errors import Refused, ServerUnreachable, UsageError
from celeriac.common.contract.events import Event
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import Record
from celeriac.common.settings import Settings, load
from celeriac.common.substrate.events import START, FollowEntry
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import Created, SendStatus, Sent
from celeriac.coordinator.jobs import JobOptions, JobResult, Submission, prepare, result_of
from celeriac.coordinator.servers import no_answer, resolve_url

FOLLOW_BLOCK_MS = 1000
"""How long one read of the events waits; bounds how late the end of a job whose last event was lost is seen."""
STOP_LOOK_MS = 200
"""How often a stop looks again for owners that died before they acted."""
STOP_GRACE_SECONDS = 5.0
"""Beyond one lease (after which anyone may settle a lost owner's task), before a stop is reported as not confirmed."""

END_OF_RUN = "result"
"""Type of the follow entry that ends a run."""


class StopVerdict(StrEnum):
    """What became of one task when its tree was stopped (PROTOCOL 4)."""

    STOPPED = "stopped"
    FINISHED = "already finished"
    UNCONFIRMED = "not confirmed"


@dataclass(frozen=True, slots=True)
class StopLine:
    """One line of the answer to a stop."""

    task_id: TaskId
    title: str
    verdict: StopVerdict


@dataclass(frozen=True, slots=True)
class Followed:
    """One event with the place after which to read on."""

    cursor: str
    event: Event


class Client:
    """A connection to one server. Made with `Client.connect`."""

    def __init__(self, substrate: Substrate, settings: Settings) -> None:
        """`substrate` is closed by whoever made it."""
        self._substrate = substrate
        self._settings = settings

    @classmethod
    @asynccontextmanager
    async def connect(cls, to: str | Settings | None = None) -> AsyncIterator["Client"]:
        """Connect to a URL, to the server that these settings name, or (None) to the one that the settings here name.

        Raises ServerUnreachable, which says how to start one, and BadSettings.
        """
        settings = to if isinstance(to, Settings) else load({"redis.url": to}, cwd=None)
        url = resolve_url(settings.redis.url, settings.home)
        substrate = Substrate.connect(
            url,
            prefix=settings.redis.prefix,
            lease_ms=round(settings.lease.seconds * 1000),
            max_attempts=settings.supervisor.max_attempts,
            max_attempts_total=settings.supervisor.max_attempts_total,
            silent_ms=round(settings.lease.silent_seconds * 1000),
        )
        try:
            await _ping(substrate, url)
            yield cls(substrate, settings)
        finally:
            await substrate.aclose()

    async def submit(self, prompt: str | None, options: JobOptions | None = None) -> "Job":
        """Check and store a job. Raises UsageError before anything is created, Refused if the server says no."""
        return await self.create(prepare(prompt, options or JobOptions(), self._settings))

    async def create(self, submission: Submission) -> "Job":
        """Store a checked job; coordinators are told. Raises UsageError if its key names another request."""
        task = submission.task
        await self._store_replay(submission)
        answer = await self._substrate.records.create(task, parent_token=None)
        if answer is Created.MISMATCH:
            raise _other_request(task.task_id)
        if answer is Created.STOPPING:
            raise Refused(f"{task.task_id} is being stopped; submit again when it has ended")
        return Job(self, task.task_id)

    def job(self, text: str) -> "Job":
        """The handle of a known id (of a session or any of its tasks). Raises BadId."""
        return Job(self, ids.parse(text))

    async def list(self, offset: int = 0, count: int = 50) -> tuple[Record, ...]:
        """A page of the sessions, newest first; entries without a record are skipped."""
        page = await self._substrate.sessions.page(offset, count)
        records = [await self._substrate.records.find(task_id) for task_id in page]
        return tuple(record for record in records if record is not None)

    async def get(self, task_id: TaskId) -> Record:
        """One record. Raises NotFound."""
        return await self._substrate.records.get(task_id)

    async def tree(self, task_id: TaskId) -> tuple[Record, ...]:
        """The records of the session that this task belongs to, the session's own first. Raises NotFound.

        Their usage is that of all runs, where `get` tells the current run's.
        """
        await self.get(task_id)
        tree = await self._substrate.records.tree(ids.session_of(task_id))
        return tuple([await self._with_earlier_runs(record) for record in tree])

    async def transcript(self, task_id: TaskId, start: int = 0) -> tuple[Line, ...]:
        """The stored lines from `start` on. Raises NotFound."""
        await self.get(task_id)
        return await self._substrate.transcripts.lines(task_id, start)

    async def output(self, task_id: TaskId) -> str:
        """The live output so far (a command's output, a model's text). Raises NotFound."""
        await self.get(task_id)
        return await self._substrate.events.output(task_id)

    async def replay_attempts(self, session: TaskId) -> dict[tuple[str, int, int], int]:
        """How often each (path, run, turn) was answered from the job's replay."""
        return await self._substrate.replays.attempts(session)

    async def follow(self, task_id: TaskId, after: str = START) -> AsyncGenerator[Followed, None]:
        """The events of the task's session from `after` on, until the session is terminal and all are read."""
        session, cursor = ids.session_of(task_id), after
        ended = (await self.get(session)).state.terminal
        while True:
            entries = await self._read(session, cursor, block_ms=None if ended else FOLLOW_BLOCK_MS)
            if not entries and ended:
                return
            for cursor, entry in entries:
                yield Followed(cursor, await self._substrate.events.expand(entry))
            if not entries or any(entry.type == END_OF_RUN and entry.task_id == session for _, entry in entries):
                ended = (await self.get(session)).state.terminal

    async def _read(self, session: TaskId, after: str, *, block_ms: int | None) -> Sequence[tuple[str, FollowEntry]]:
        """Read events; a server that restarts meanwhile is waited for. Raises ServerUnreachable when it stays away."""
        try:
            return await self._substrate.events.read(session, after, block_ms=block_ms)
        except ServerUnreachable:
            await self.get(session)  # repeats itself for some seconds, where a blocked read does not
            return ()

    async def wait(self, task_id: TaskId) -> JobResult:
        """Wait until this task (with its session, if it is one) has ended. Raises NotFound."""
        session = ids.session_of(task_id)
        cursor = await self._substrate.events.last_id(session)
        while not (record := await self.get(task_id)).state.terminal:
            entries = await self._read(session, cursor, block_ms=FOLLOW_BLOCK_MS)
            cursor = entries[-1][0] if entries else cursor
        return result_of(record, await self.tree(task_id))

    async def send(self, task_id: TaskId, text: str) -> Sent:
        """Send a message to a session or a task. Raises Refused (with the reason), UsageError, NotFound."""
        if not text.strip():
            raise UsageError("the message is empty")
        await self.get(task_id)
        sent = await self._substrate.inboxes.send_message(task_id, ids.nonce(), text, op=ids.nonce(), sender=None)
        if sent.status is SendStatus.REFUSED:
            raise Refused(f"{task_id} takes no message now: {sent.reason}")
        if sent.wake is not None:
            await self._substrate.hints.push_sessions(task_id)  # a coordinator sends the queue's wake-up
        return sent

    async def stop(
        self, task_id: TaskId, reason: str, *, kind: Literal["user", "limit"] = "user"
    ) -> tuple[StopLine, ...]:
        """Stop a task and everything below it; one line for each. Bounded: what still runs then is not confirmed."""
        before = await self._subtree(task_id)
        op = ids.nonce()
        bound = self._settings.lease.seconds + STOP_GRACE_SECONDS
        after = before
        try:
            async with asyncio.timeout(bound):
                after = await self._stop_until_terminal(task_id, reason, kind, op)
        except TimeoutError:
            after = await self._subtree(task_id)
        return tuple(_stop_lines(before, after))

    async def _stop_until_terminal(
        self, task_id: TaskId, reason: str, kind: Literal["user", "limit"], op: str
    ) -> tuple[Record, ...]:
        """Ask, settle and look again until nothing below runs. Asking again is harmless (PROTOCOL 4)."""
        session = ids.session_of(task_id)
        cursor = await self._substrate.events.last_id(session)
        records = self._substrate.records
        while True:
            await records.request_stop(task_id, kind=kind, reason=reason, op=op)
            tasks = await self._subtree(task_id)
            for task in tasks:
                if not task.state.terminal:
                    await records.settle_stop(task.task_id)
            tasks = await self._subtree(task_id)
            if all(task.state.terminal for task in tasks):
                return tasks
            entries = await self._read(session, cursor, block_ms=STOP_LOOK_MS)
            cursor = entries[-1][0] if entries else cursor

    async def _with_earlier_runs(self, record: Record) -> Record:
        usage = record.usage
        for run in range(1, record.run):
            outcome = await self._substrate.records.outcome(record.task_id, run)
            usage = usage if outcome is None else usage.plus(outcome.usage)
        return record.model_copy(update={"usage": usage})

    async def _subtree(self, task_id: TaskId) -> tuple[Record, ...]:
        tree = await self.tree(task_id)
        return tuple(_below(task_id, tree))

    async def _store_replay(self, submission: Submission) -> None:
        """Store the replay before the job exists; never over that of a job that is there already."""
        if submission.replay is None:
            return
        session = submission.task.task_id
        if await self._substrate.records.find(session) is None:
            await self._substrate.replays.store(session, submission.replay)
        elif await self._substrate.replays.load(session) != submission.replay:
            raise _other_request(session)


@dataclass(frozen=True, slots=True)
class Job:
    """The handle of one job."""

    client: Client
    id: TaskId

    async def follow(self, after: str = START) -> AsyncGenerator[Event, None]:
        """The events of the whole tree, until the session has ended and all of them are read."""
        async with aclosing(self.client.follow(self.id, after)) as events:
            async for followed in events:
                yield followed.event

    async def result(self) -> JobResult:
        """Wait for the end."""
        return await self.client.wait(self.id)

    async def send(self, text: str) -> Sent:
        """Send a message. Raises Refused."""
        return await self.client.send(self.id, text)

    async def stop(self, reason: str = "user") -> tuple[StopLine, ...]:
        """Stop it with everything below."""
        return await self.client.stop(self.id, reason)


async def _ping(substrate: Substrate, url: str) -> None:
    try:
        await substrate.ping()
    except ServerUnreachable as error:
        raise no_answer(url) from error


def _other_request(session: TaskId) -> UsageError:
    return UsageError(f"the idempotency key was used for another request ({session}); use a new key")


def _below(task_id: TaskId, tree: tuple[Record, ...]) -> Iterable[Record]:
    """The task and its descendants, in the order of the tree."""
    members = {task_id}
    for record in tree:
        if record.task_id in members or record.parent in members:
            members.add(record.task_id)
            yield record


def _stop_lines(before: tuple[Record, ...], after: tuple[Record, ...]) -> Iterable[StopLine]:
    ended = {record.task_id for record in before if record.state.terminal}
    for record in after:
        if record.task_id in ended:
            verdict = StopVerdict.FINISHED
        elif record.state.terminal:
            verdict = StopVerdict.STOPPED if record.stop is not None else StopVerdict.FINISHED
        else:
            verdict = StopVerdict.UNCONFIRMED
        yield StopLine(record.task_id, record.title, verdict)
