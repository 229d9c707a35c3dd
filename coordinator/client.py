"""The client: submits jobs, follows them, talks to them, stops them.

Knows the substrate only. Coordinator processes are woken by hints; whatever a lost hint delays, their scan finds.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, overload

from celeriac.common.contract import ids
from celeriac.common.contract.errors import Refused, ServerUnreachable, UsageError
from celeriac.common.contract.events import Event
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import Record
from celeriac.common.settings import Settings, load
from celeriac.common.substrate.events import START, parse_event_id
from celeriac.common.substrate.opening import terms_of
from celeriac.common.substrate.patience import CLIENT_PATIENCE_SECONDS, FIRST_PATIENCE_SECONDS, Patience, log_it
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import Created, SendStatus, Sent
from celeriac.coordinator import following
from celeriac.coordinator.batch import PARALLEL, Asked, Checked, Faults, as_they_end, check_all
from celeriac.coordinator.jobs import JobOptions, JobResult, Submission, prepare, require_text, result_of
from celeriac.coordinator.servers import no_answer, resolve_url
from celeriac.coordinator.stopping import StopLine, Stopping


class Client:
    """A connection to one server. Made with `Client.connect`."""

    def __init__(self, substrate: Substrate, settings: Settings) -> None:
        """`substrate` is closed by whoever made it."""
        self._substrate = substrate
        self._settings = settings

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, to: str | Settings | None = None, *, tell: Callable[[str], None] = log_it
    ) -> AsyncIterator["Client"]:
        """Connect to a URL, to the server that these settings name, or (None) to the one that the settings here name.

        Every call waits for a server that does not answer (FIRST_PATIENCE_SECONDS here, CLIENT_PATIENCE_SECONDS later)
        and repeats itself; `tell` is given a line when an outage has begun and when it is over. Raises
        ServerUnreachable, which says how to start one, and BadSettings.
        """
        settings = to if isinstance(to, Settings) else load({"redis.url": to}, cwd=None)
        url = resolve_url(settings.redis.url, settings.home)
        substrate = Substrate.connect(
            url,
            prefix=settings.redis.prefix,
            terms=terms_of(settings),
            patience=Patience(CLIENT_PATIENCE_SECONDS, tell),
        )
        try:
            await _reach(substrate, url)
            yield cls(substrate, settings)
        finally:
            await substrate.aclose()

    @overload
    async def submit(
        self, prompt: str | None, options: JobOptions | None = None, *, wait: Literal[False] = False
    ) -> "Job": ...
    @overload
    async def submit(
        self, prompt: str | None, options: JobOptions | None = None, *, wait: Literal[True]
    ) -> JobResult: ...

    async def submit(
        self, prompt: str | None, options: JobOptions | None = None, *, wait: bool = False
    ) -> "Job | JobResult":
        """Check and store a job; its handle, or with `wait` its result when it has ended.

        Raises UsageError before anything is created, Refused if the server says no."""
        job = await self.create(prepare(prompt, options or JobOptions(), self._settings))
        return await job.result() if wait else job

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

    async def batch(
        self, jobs: Iterable[Asked], *, parallel: int = PARALLEL
    ) -> AsyncGenerator[tuple[int, JobResult], None]:
        """Run many jobs, at most `parallel` at a time; (number from 1, result) of each when it ends.

        All are checked before the first is submitted: UsageError names every fault. Given idempotency keys, the same
        batch run again finds its jobs."""
        async with aclosing(self.run_checked(check_all(jobs, self._settings), parallel=parallel)) as ended:
            async for number, result in ended:
                yield number, result

    async def run_checked(
        self, batch: Sequence[Checked], *, parallel: int = PARALLEL
    ) -> AsyncGenerator[tuple[int, JobResult], None]:
        """`batch` of what was checked before."""
        await self.check_keys(batch)
        async with aclosing(as_they_end(batch, self._run, parallel)) as ended:
            async for number, result in ended:
                yield number, result

    async def check_keys(self, batch: Sequence[Checked]) -> None:
        """Raises UsageError if idempotency keys of the batch were used for other requests: all of them are named."""
        faults = Faults("the batch")
        for one in batch:
            try:
                await self._check_key(one.submission)
            except UsageError as error:
                faults.add(one.number, error)
        faults.check()

    async def _run(self, submission: Submission) -> JobResult:
        return await (await self.create(submission)).result()

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

    async def follow_output(
        self, task_id: TaskId, after: str = START, *, until_end: bool = True
    ) -> AsyncGenerator[tuple[str, str], None]:
        """(place, piece) of the live output that is kept, after the place `after`; `until_end`: go on until the task
        has ended and all is read. Raises NotFound."""
        await self.get(task_id)
        async with aclosing(following.output(self._substrate, task_id, after, until_end=until_end)) as pieces:
            async for place, piece in pieces:
                yield place, piece

    async def replay_attempts(self, session: TaskId) -> dict[tuple[str, int, int], int]:
        """How often each (path, run, turn) was answered from the job's replay."""
        return await self._substrate.replays.attempts(session)

    async def follow(self, task_id: TaskId, after: str = START) -> AsyncGenerator[Event, None]:
        """The events of the task's session, until the session has ended and all of them are read.

        Each has an `event_id`; given as `after`, whoever follows goes on behind it, in whatever process. Where events
        are no longer kept (about 100,000 are), a system event `events_trimmed` stands. Raises UsageError, NotFound."""
        events = following.follow(self._substrate, task_id, parse_event_id(after))
        async with aclosing(events):
            async for event in events:
                yield event

    async def wait(self, task_id: TaskId) -> JobResult:
        """Wait until this task (with its session, if it is one) has ended. Raises NotFound."""
        record = await following.until_ended(self._substrate, task_id)
        return result_of(record, await self.tree(task_id))

    async def send(self, task_id: TaskId, text: str) -> Sent:
        """Send a message to a session or a task. Raises Refused (with the reason), UsageError, NotFound."""
        if not text.strip():
            raise UsageError("the message is empty")
        require_text("the message", text)
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
        require_text("the reason", reason)
        return await Stopping(self._substrate, self.tree, task_id, reason, kind, ids.nonce()).run()

    async def _with_earlier_runs(self, record: Record) -> Record:
        usage = record.usage
        for run in range(1, record.run):
            outcome = await self._substrate.records.outcome(record.task_id, run)
            usage = usage if outcome is None else usage.plus(outcome.usage)
        return record.model_copy(update={"usage": usage})

    async def _check_key(self, submission: Submission) -> None:
        """Raises UsageError if the job is there already and was asked for otherwise."""
        session, replay = submission.task.task_id, submission.replay
        if await self._substrate.records.names_another(submission.task):
            raise _other_request(session)
        if replay is None or await self._substrate.records.find(session) is None:
            return
        if await self._substrate.replays.load(session) != replay:
            raise _other_request(session)

    async def _store_replay(self, submission: Submission) -> None:
        """Store the replay before the job exists; never over that of a job that is there already."""
        if submission.replay is None:
            return
        session = submission.task.task_id
        await self._check_key(submission)
        if await self._substrate.records.find(session) is None:
            await self._substrate.replays.store(session, submission.replay)


@dataclass(frozen=True, slots=True)
class Job:
    """The handle of one job."""

    client: Client
    id: TaskId

    async def follow(self, after: str = START) -> AsyncGenerator[Event, None]:
        """The events of the whole tree, as `Client.follow`: store an event's `event_id` to go on after it."""
        async with aclosing(self.client.follow(self.id, after)) as events:
            async for event in events:
                yield event

    async def result(self) -> JobResult:
        """Wait for the end."""
        return await self.client.wait(self.id)

    async def send(self, text: str) -> Sent:
        """Send a message. Raises Refused."""
        return await self.client.send(self.id, text)

    async def stop(self, reason: str = "user") -> tuple[StopLine, ...]:
        """Stop it with everything below."""
        return await self.client.stop(self.id, reason)


async def _reach(substrate: Substrate, url: str) -> None:
    try:
        await substrate.reach(FIRST_PATIENCE_SECONDS)
    except ServerUnreachable as error:
        raise no_answer(url, error.__cause__) from error


def _other_request(session: TaskId) -> UsageError:
    return UsageError(f"the idempotency key was used for another request ({session}); use a new key")
