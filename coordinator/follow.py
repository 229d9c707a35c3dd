"""Following a job on the command line: a live list on a terminal, plain lines when piped, or JSON.

Progress goes to stderr and the answer to stdout, so that a pipe gets nothing but the answer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.contract.events import AssistantEvent, Event, ResultEvent, StreamEvent, UnknownEvent
from celeriac.common.contract.ids import TaskId, session_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Record, State, Subtype
from celeriac.common.contract.tool_names import SYNTHETIC_OUTPUT
from celeriac.common.substrate.events import START
from celeriac.coordinator.client import Client
from celeriac.coordinator.display import describe_call, event_lines, tree_lines
from celeriac.coordinator.jobs import QUESTION, JobResult
from celeriac.coordinator.words import harmless

if TYPE_CHECKING:
    from celeriac.coordinator.live import LiveList

REFRESH_SECONDS = 0.5
"""How often the live list reads the records: tokens and time move between events."""


class OutputFormat(StrEnum):
    """`--output-format`."""

    TEXT = "text"
    JSON = "json"
    STREAM = "stream-json"


@dataclass(frozen=True, slots=True)
class Streams:
    """Where output goes."""

    out: TextIO
    err: TextIO

    def answer(self, text: str) -> None:
        """A line of the answer, at once."""
        self.out.write(text + "\n")
        self.out.flush()

    def say(self, text: str) -> None:
        """A line of progress, at once."""
        self.err.write(text + "\n")
        self.err.flush()

    @property
    def terminal(self) -> bool:
        """Whether a person watches both, so that drawing over lines is safe."""
        return self.out.isatty() and self.err.isatty()


OnQuestion = Callable[[str], Awaitable[bool]]
"""Deals with a question of the session; True: go on following, False: leave it and return."""


@dataclass(slots=True)
class Board:
    """What is known of the tasks of one job."""

    client: Client
    session: TaskId
    records: dict[TaskId, Record] = field(default_factory=dict)
    activities: dict[TaskId, str] = field(default_factory=dict)
    """Last call of each task, newer than what its record says."""

    async def refresh(self) -> None:
        """Read all records again."""
        self.records = {record.task_id: record for record in await self.client.tree(self.session)}

    async def title(self, task_id: TaskId) -> str:
        """Title of a task; reads the records when it is a new one."""
        if task_id not in self.records:
            await self.refresh()
        return self.records[task_id].title if task_id in self.records else ""

    def note(self, event: Event) -> None:
        """Keep the activity that an event tells."""
        if isinstance(event, AssistantEvent):
            calls = [block for block in event.message.content if block.get("type") == "tool_use"]
            if calls:
                self.activities[event.task_id] = describe_call(calls[-1])
        elif isinstance(event, ResultEvent):
            self.activities.pop(event.task_id, None)


class Follower:
    """Follows one job until it ends, or until its question is left unanswered."""

    def __init__(
        self, client: Client, task_id: TaskId, streams: Streams, output: OutputFormat, *, after: str = START
    ) -> None:
        """Everything behind the event `after` is shown in `output` form on `streams`."""
        self.board = Board(client, session_of(task_id))
        self._client = client
        self._streams = streams
        self._output = output
        self._after = after
        self._live: LiveList | None = None
        self._may_have_asked = False

    async def run(self, on_question: OnQuestion) -> JobResult | None:
        """Follow to the end and return the result; None if `on_question` gave up."""
        await self.board.refresh()
        with self._view():
            refresher = asyncio.create_task(self._keep_fresh(), name="refresh live list") if self._live else None
            try:
                ended = await self._consume(on_question)
            finally:
                if refresher is not None:
                    refresher.cancel()
            await self.board.refresh()
            self._draw()
        if not ended:
            return None
        result = await self._client.wait(self.board.session)
        return result.model_copy(update={"event_id": self._after})

    async def _consume(self, on_question: OnQuestion) -> bool:
        if self._after != START and not await self._deal_with(await self._waiting_question(), on_question):
            return False
        async with aclosing(self._client.follow(self.board.session, self._after)) as events:
            async for event in events:
                self._after = event.event_id
                await self._show(event)
                if not await self._deal_with(await self._asked(event), on_question):
                    return False
        return True

    async def _deal_with(self, question: str | None, on_question: OnQuestion) -> bool:
        """Whether to go on following."""
        if question is None:
            return True
        with self._interrupted_view():
            return await on_question(question)

    async def _show(self, event: Event) -> None:
        self.board.note(event)
        if self._output is OutputFormat.STREAM:
            self._stream(event)
        elif self._output is OutputFormat.TEXT and self._live is None and not isinstance(event, UnknownEvent):
            title = await self.board.title(event.task_id)
            for line in event_lines(event, title):
                self._streams.say(line)

    def _stream(self, event: Event) -> None:
        """One JSON line; the session's own result is the last line of all and written when the job has ended."""
        if isinstance(event, StreamEvent) or (isinstance(event, ResultEvent) and event.task_id == self.board.session):
            return
        text = json.dumps(event.raw) if isinstance(event, UnknownEvent) else event.model_dump_json()
        self._streams.answer(text)

    async def _asked(self, event: Event) -> str | None:
        """The question, once it is certain that the session waits for the answer."""
        if isinstance(event, UnknownEvent) or event.task_id != self.board.session:
            return None
        if isinstance(event, AssistantEvent):
            self._may_have_asked = question_in(event.message.content) is not None
            return None
        if not self._may_have_asked or (question := await self._waiting_question()) is None:
            return None
        self._may_have_asked = False
        return question

    async def _waiting_question(self) -> str | None:
        """What the session waits to be told, if it does."""
        return await self._last_question() if (await self._client.get(self.board.session)).asked else None

    async def _last_question(self) -> str:
        """The one that waits: this event may be of an earlier one, answered long ago."""
        lines = await self._client.transcript(self.board.session)
        questions = (question_in(line.content) for line in reversed(lines) if line.role == "assistant")
        return next((question for question in questions if question is not None), "")

    @contextmanager
    def _view(self) -> Iterator[None]:
        with self._new_live() as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    @contextmanager
    def _interrupted_view(self) -> Iterator[None]:
        """Take the live list away while something is asked."""
        if self._live is None:
            yield
            return
        live, self._live = self._live, None  # the refresher draws nothing meanwhile
        live.__exit__(None, None, None)
        try:
            yield
        finally:
            live.__enter__()
            self._live = live

    def _new_live(self) -> "AbstractContextManager[LiveList | None]":
        if self._output is not OutputFormat.TEXT or not self._streams.terminal:
            return nullcontext()
        from celeriac.coordinator.live import (  # noqa: PLC0415 - rich costs 0.1 s, needed on terminals only
            LiveList,
            drawable,
        )

        return LiveList(self._streams.err) if drawable(self._streams.err) else nullcontext()

    async def _keep_fresh(self) -> None:
        while True:
            with suppress(CeleriacError):  # the follower meets the same error and reports it
                await self.board.refresh()
            self._draw()
            await asyncio.sleep(REFRESH_SECONDS)

    def _draw(self) -> None:
        if self._live is not None:
            self._live.show(self.board.records, self.board.activities)


def question_in(content: Iterable[JsonObject]) -> str | None:
    """The question that this answer asks by SyntheticOutput, if it does."""
    for block in content:
        given = block.get("input")
        if block.get("name") == SYNTHETIC_OUTPUT and isinstance(given, dict) and given.get("kind") == QUESTION:
            return str(given.get("result") or "")
    return None


def show_result(result: JobResult, output: OutputFormat, streams: Streams) -> None:
    """The last words: the answer on stdout; on stderr why it failed, and the tree."""
    if output is not OutputFormat.TEXT:
        streams.answer(json.dumps(result.document(), ensure_ascii=False))
        return
    text = _answer(result)
    if text:
        streams.answer(harmless(text) if streams.out.isatty() else text)
    for line in (*complaints(result), *tree_lines(result)):
        streams.say(line)


def show_question(session: TaskId, question: str, streams: Streams) -> None:
    """A JSON document for a job that goes on waiting for an answer that nobody here can give."""
    document = {
        "type": "result",
        "subtype": Subtype.EXECUTION.value,
        "is_error": True,
        "result": None,
        "reason": QUESTION,
        "question": question,
        "session_id": session,
        "total_cost_usd": None,
    }
    streams.answer(json.dumps(document, ensure_ascii=False))


def _answer(result: JobResult) -> str | None:
    if result.structured_output is not None:
        return json.dumps(result.structured_output, ensure_ascii=False, indent=2)
    return result.result


def complaints(result: JobResult) -> Iterator[str]:
    """Why the exit code is not 0."""
    if result.exit_code == 0:
        return
    if result.still_open:
        yield f"celeriac: still running: {', '.join(result.still_open)}"
    for line in result.replay_unused:
        yield f"celeriac: replay: {harmless(line)}"
    if result.state is not State.COMPLETED:
        verb = "was stopped" if result.state is State.STOPPED else "failed"
        yield f"celeriac: the job {verb}: {harmless(result.reason or result.subtype.value)}"
