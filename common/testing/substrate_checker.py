"""The invariants of PROTOCOL 10 over all keys of a server: I1, I2, I3, I4, I7, and that records and
questions agree with themselves.

I5 (an end is reached) is the caller's to bound: `open_tasks` tells what is still open. Faults are sentences.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import orjson
from redis.asyncio import Redis

from celeriac.common.contract.ids import TaskId, session_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import Outcome, State
from celeriac.common.substrate.connection import mapping, text, texts
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.questions import read_question
from celeriac.common.substrate.reading import Raw, stored_answer
from celeriac.common.substrate.types import StoredAnswer

_NAMES = ("t", "x", "in", "runs")
_ANSWER = "answer:"
"""Before a question's id: the field of its answer, and the park for it."""


@dataclass(frozen=True, slots=True)
class Task:
    """All keys of one task."""

    id: TaskId
    record: Raw
    lines: tuple[Line, ...]
    outcomes: Mapping[int, Outcome]

    @property
    def state(self) -> State:
        """Of the current run."""
        return State(self.record.word("state"))

    @property
    def run(self) -> int:
        """The current run."""
        return self.record.count("run")

    @property
    def parent(self) -> TaskId | None:
        """The task above, if any."""
        return TaskId(self.record.word("parent")) if self.record.word("parent") else None


@dataclass(frozen=True, slots=True)
class Session:
    """The keys that one session's tasks share."""

    open: frozenset[str]
    all: frozenset[str]
    entries: Mapping[str, str]
    fates: Mapping[str, str]
    questions: Mapping[str, str]


@dataclass(slots=True)
class World:
    """Everything on a server."""

    tasks: dict[TaskId, Task] = field(default_factory=dict)
    sessions: dict[TaskId, Session] = field(default_factory=dict)

    def children(self, task_id: TaskId) -> list[Task]:
        """The tasks right below this one."""
        return [task for task in self.tasks.values() if task.parent == task_id]


async def read_world(client: Redis, keys: Keys) -> World:
    """Read all keys under a prefix; the server should be quiet."""
    world = World()
    pattern = f"{keys.prefix}c:{{*}}:t:*"
    async for key in client.scan_iter(match=pattern, count=1000):
        task_id = TaskId(text(key).rpartition(":")[2])
        world.tasks[task_id] = await _read_task(client, keys, task_id)
        session = session_of(task_id)
        if session not in world.sessions:
            world.sessions[session] = await _read_session(client, keys, session)
    return world


async def _read_task(client: Redis, keys: Keys, task_id: TaskId) -> Task:
    record, lines, inbox, runs = (keys.task(task_id, name) for name in _NAMES)
    raw = cast("Iterable[bytes]", await client.lrange(lines, 0, -1))
    ended = mapping(await client.hgetall(runs))
    return Task(
        id=task_id,
        record=Raw(mapping(await client.hgetall(record)), texts(await client.lrange(inbox, 0, -1)), ()),
        lines=tuple(Line.model_validate(orjson.loads(line)) for line in raw),
        outcomes={int(run): Outcome.model_validate_json(outcome) for run, outcome in ended.items()},
    )


async def _read_session(client: Redis, keys: Keys, session: TaskId) -> Session:
    return Session(
        open=frozenset(texts(await client.smembers(keys.session(session, "open")))),
        all=frozenset(texts(await client.smembers(keys.session(session, "all")))),
        entries=mapping(await client.hgetall(keys.session(session, "ent"))),
        fates=mapping(await client.hgetall(keys.session(session, "fate"))),
        questions=mapping(await client.hgetall(keys.session(session, "ask"))),
    )


def open_tasks(world: World) -> list[TaskId]:
    """What has not ended; I5 asks that this becomes empty once nothing fails any more."""
    return [task.id for task in world.tasks.values() if not task.state.terminal]


def faults(
    world: World,
    *,
    accepted: Iterable[str] = (),
    effects: Mapping[str, int] | None = None,
    told: Iterable[tuple[str, StoredAnswer]] = (),
) -> list[str]:
    """Every violation. `accepted`: ids of messages that were answered QUEUED or REOPENED. `effects`: tool_use id →
    how often its outside effect was seen. `told`: questions with the answers that anybody was told to be theirs."""
    found: list[str] = []
    for task in world.tasks.values():
        session = world.sessions[session_of(task.id)]
        found += [f"{task.id}: {fault}" for fault in _task_faults(world, session, task)]
    found += _i4(world, accepted)
    found += _questions(world, told)
    found += [f"I7 {tool} had its effect {times} times" for tool, times in (effects or {}).items() if times > 1]
    return found


def _task_faults(world: World, session: Session, task: Task) -> Iterator[str]:
    yield from _record(world, session, task)
    yield from _answer_park(session, task)
    yield from _i1(world, session, task)
    yield from _i2(task)
    yield from _i3(world, task)
    yield from _i7(task.lines)


def _record(world: World, session: Session, task: Task) -> Iterator[str]:
    """The record agrees with the sets, the counters and the outcomes around it."""
    if (task.id in session.open) == task.state.terminal:
        yield f"is {task.state}, but the set of open tasks says otherwise"
    if task.id not in session.all:
        yield "is missing in the set of all tasks"
    if task.record.count("tlen") != len(task.lines):
        yield f"tlen is {task.record.count('tlen')}, but there are {len(task.lines)} lines"
    if task.state.terminal and (task.record.word("owner") or task.record.word("park")):
        yield "has ended, but is owned or parked"
    below = sum(not child.state.terminal for child in world.children(task.id))
    if task.record.count("open_children") != below:
        yield f"open_children is {task.record.count('open_children')}, but {below} are open"
    ended = set(range(1, task.run + task.state.terminal))
    if set(task.outcomes) != ended:
        yield f"outcomes of the runs {sorted(task.outcomes)}, but {sorted(ended)} have ended"
    if task.state.terminal and task.run in task.outcomes and task.outcomes[task.run].state is not task.state:
        yield f"is {task.state}, but its outcome is {task.outcomes[task.run].state}"


def _answer_park(session: Session, task: Task) -> Iterator[str]:
    """Who is parked for an answer wakes by its time or by the answer, which has not come yet."""
    park = task.record.word("park")
    if not park.startswith(_ANSWER):
        return
    if not task.record.count("park_at"):
        yield f"is parked for {park} without a time"
    if park in session.questions:
        yield f"is parked for {park}, which is there"


def _questions(world: World, told: Iterable[tuple[str, StoredAnswer]]) -> Iterator[str]:
    """Questions are asked by runs that were, and answered once: everybody is told the same."""
    stored = {name: written for session in world.sessions.values() for name, written in session.questions.items()}
    for name, written in stored.items():
        if name.startswith(_ANSWER):
            if name.removeprefix(_ANSWER) not in stored:
                yield f"{name} answers no question"
            continue
        asked = read_question(name, written)
        asker = world.tasks.get(asked.task_id)
        if asker is None or not 1 <= asked.run <= asker.run:
            yield f"question {name} is of run {asked.run} of {asked.task_id}, which never was"
    for qid, answer in told:
        found = stored_answer(stored.get(f"{_ANSWER}{qid}", ""))
        if found != answer:
            yield f"the answer to {qid} was told to be {answer}, but {found} is stored"


def _i1(world: World, session: Session, task: Task) -> Iterator[str]:
    """Each ended run has one entry, consumed at most once, and exactly once before the parent completes."""
    if task.parent is None:
        return
    parent = world.tasks[task.parent]
    consumed = Counter(entry for line in parent.lines for entry in line.inbox_ids)
    waiting = Counter(parent.record.inbox)
    prefix = f"n:{task.id}:"
    entries = {int(entry.removeprefix(prefix)) for entry in session.entries if entry.startswith(prefix)}
    if entries != set(task.outcomes):
        yield f"I1 notified of the runs {sorted(entries)}, but {sorted(task.outcomes)} have ended"
    for run in task.outcomes:
        entry = f"{prefix}{run}"
        if consumed[entry] + waiting[entry] != 1:
            yield f"I1 {entry} was consumed {consumed[entry]} times and waits {waiting[entry]} times"
        if bool(consumed[entry]) != (entry in session.fates):
            yield f"I1 {entry} was consumed {consumed[entry]} times, but its fate is {session.fates.get(entry)}"
        if waiting[entry] and parent.state is State.COMPLETED:
            yield f"I1 {entry} waits, but the parent is completed"


def _i2(task: Task) -> Iterator[str]:
    """Fences never go down; one fence has one nonce; numbers and runs go up."""
    nonces: dict[int, str] = {}
    last = (0, 0)
    for number, line in enumerate(task.lines):
        fence, _, nonce = line.token.partition("/")
        if line.seq != number:
            yield f"I2 line {number} says it is line {line.seq}"
        if (int(fence), line.run) < last or line.run < last[1]:
            yield f"I2 line {number} is of fence {fence}, run {line.run}, after {last}"
        if nonces.setdefault(int(fence), nonce) != nonce:
            yield f"I2 fence {fence} has two nonces"
        last = (int(fence), line.run)


def _i3(world: World, task: Task) -> Iterator[str]:
    """What ended after its stop, or after one above it, ended stopped, or failed by its own limit."""
    outcome = task.outcomes.get(task.run)
    if outcome is None:
        return
    stops = [(task, task.run), *((world.tasks[above], run) for above, run in task.record.chain())]
    for stopped, run in stops:
        if stopped.record.count("stop_upto") < run or task.record.count("ended_at") <= stopped.record.count("stop_at"):
            continue
        by_limit = task.record.word("stop_kind") == "limit" and outcome.state is State.FAILED
        if outcome.state is not State.STOPPED and not by_limit:
            yield f"I3 run {task.run} ended {outcome.state} ({outcome.reason}) after the stop of {stopped.id}"


def _i4(world: World, accepted: Iterable[str]) -> Iterator[str]:
    """Each accepted message waits, or is in exactly one transcript, or is undeliverable and its sender is told."""
    waiting = Counter(entry for task in world.tasks.values() for entry in task.record.inbox)
    lines = Counter(entry for task in world.tasks.values() for line in task.lines for entry in line.inbox_ids)
    told = Counter(
        entry for task in world.tasks.values() for outcome in task.outcomes.values() for entry in outcome.undeliverable
    )
    known = {entry for session in world.sessions.values() for entry in session.entries if entry.startswith("m:")}
    fates = {entry: fate for session in world.sessions.values() for entry, fate in session.fates.items()}
    for entry in set(accepted) - known:
        yield f"I4 {entry} was accepted, but it is nowhere"
    for entry in known:
        if (waiting[entry], lines[entry], told[entry]) not in {(1, 0, 0), (0, 1, 0), (0, 0, 1)}:
            yield f"I4 {entry} waits {waiting[entry]}, was read {lines[entry]}, returned {told[entry]} times"
        expected = "consumed" if lines[entry] else "undeliverable" if told[entry] else ""
        if fates.get(entry, "").partition(" ")[0] != expected:
            yield f"I4 {entry} should be {expected or 'waiting'}, but its fate is {fates.get(entry)}"


def _i7(lines: Sequence[Line]) -> Iterator[str]:
    """No assistant message while a tool_use is unanswered, no tool_result without one."""
    unanswered: set[str] = set()
    for line in lines:
        answered = _ids(line.content, "tool_result", "tool_use_id")
        if line.role == "assistant" and unanswered:
            yield f"I7 line {line.seq} is an answer while {sorted(unanswered)} wait for results"
        if not answered <= unanswered:
            yield f"I7 line {line.seq} has results that nothing asked for: {sorted(answered - unanswered)}"
        unanswered = (unanswered - answered) | _ids(line.content, "tool_use", "id")


def _ids(content: Iterable[JsonObject], kind: str, name: str) -> set[str]:
    return {str(block[name]) for block in content if block["type"] == kind}
