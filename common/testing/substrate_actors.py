"""Processes of the substrate's stress: coordinators, workers, supervisors and clients that follow PROTOCOL 4 on the
substrate alone, with a random mind instead of a model. They are killed and paused from outside, lose and triple
wake-ups, and repeat scripts as if replies were lost, until the key `quiet` says that nothing fails any more."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import orjson
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract import ids
from celeriac.common.contract.errors import LeaseLost, ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Limits, SessionSpec
from celeriac.common.substrate.connection import Answer, Argument, Connection, number, text, texts
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.leases import Lease, Terms
from celeriac.common.substrate.scripts import ScriptLibrary
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import SendStatus, StoredAnswer
from celeriac.common.testing.substrate_kit import new_task

WAKE_UPS = "stress:wake-ups"
ACCEPTED = "stress:accepted"
EFFECTS = "stress:effects"
TOLD = "stress:told"
QUIET = "stress:quiet"
LOSS = 0.15
"""Share of wake-ups lost, and share tripled."""
REPEATS = 0.05
"""Share of scripts whose reply is lost, so that they are repeated."""
SCAN_SECONDS = 0.1
SESSIONS = 40
"""Sessions that one client submits."""
RECENT = 6
"""Sessions that a client still talks to: most others have ended."""
LIVES = 8
"""Tasks that one process runs at a time."""

MUTATIONS: dict[str, tuple[str, str, str]] = {
    "": ("renew", "return ack(r)", "return ack(r)"),
    "no free check": ("claim", "if not free(r) then return { answer('BUSY') } end\n", ""),
    "renew without effect": ("renew", "lease_until = now + A.ttl, ", ""),
    "no owner check": ("lib/ownership", "r.owner == token", "r.owner ~= nil"),
}
"""Faults that a checker must find; the first is none."""


def chance(share: float) -> bool:
    """True in this share of all cases."""
    return random.random() < share


class Faulty(Connection):
    """Loses replies after the script has run, while `faulty` is true."""

    faulty = True

    async def run(self, name: str, keys: Sequence[str], *arguments: Argument) -> Answer:
        """One script, whose reply is not always heard."""
        answer = await super().run(name, keys, *arguments)
        if self.faulty and chance(REPEATS):
            raise RedisConnectionError("stress: this reply is lost")
        return answer


@dataclass(slots=True)
class Actor:
    """One process's view."""

    name: str
    substrate: Substrate
    redis: Redis
    connection: Faulty

    async def quiet(self) -> bool:
        """Whether faults are over; this process then stops making them."""
        over = bool(number(await self.redis.exists(QUIET)))
        self.connection.faulty = not over
        return over

    async def wake(self, task_id: TaskId, run: int) -> None:
        """Send a wake-up, which may get lost or tripled."""
        faulty = self.connection.faulty
        copies = 0 if faulty and chance(LOSS) else 3 if faulty and chance(LOSS) else 1
        for _ in range(copies):
            await self.redis.rpush(WAKE_UPS, f"{task_id} {run}")

    async def send(self, task_id: TaskId, op: str, sender: tuple[TaskId, str] | None) -> str:
        """Send a message, and write down that it was accepted."""
        sent = await self.substrate.inboxes.send_message(task_id, op, "go on", op=op, sender=sender)
        if sent.status in {SendStatus.QUEUED, SendStatus.REOPENED}:
            await self.redis.rpush(ACCEPTED, f"m:{op}")
        if sent.wake is not None:
            await self.wake(task_id, sent.run)
        return sent.status.value

    async def told(self, qid: str, answer: StoredAnswer) -> None:
        """Write down what we were told to be the answer to a question."""
        await self.redis.rpush(TOLD, orjson.dumps([qid, answer]))

    async def answer(self, session: TaskId) -> None:
        """Answer what is open in a session, some of it twice at once."""
        for question in await self.substrate.questions.open(session):
            ops = [ids.nonce() for _ in range(2 if chance(0.3) else 1)]
            give = self.substrate.questions.answer
            for done in await asyncio.gather(*(give(question.task_id, question.qid, {"by": op}, op=op) for op in ops)):
                if done.stored is not None:
                    await self.told(question.qid, done.stored)
                if done.wake is not None:
                    await self.wake(done.wake.task_id, done.wake.run)


class Lives:
    """The tasks that one process runs at a time."""

    def __init__(self, actor: Actor, live: Callable[["Lives", Actor, Lease], Awaitable[None]]) -> None:
        """`live` runs one claimed task to its end."""
        self.actor = actor
        self._live = live
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> bool:
        """Whether no further task is to be taken."""
        return len(self._tasks) >= LIVES

    async def take(self, task_id: TaskId, run: int | None) -> None:
        """Claim, and live if that worked."""
        lease = await self.actor.substrate.claim(task_id, run, process=self.actor.name)
        if isinstance(lease, Lease):
            task = asyncio.create_task(self._one(lease), name=lease.task_id)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _one(self, lease: Lease) -> None:
        beating = asyncio.create_task(lease.heartbeat(), name=f"heartbeat of {lease.task_id}")
        try:
            with contextlib.suppress(LeaseLost, ServerUnreachable):
                await self._live(self, self.actor, lease)
        finally:
            beating.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            sys.stderr.write(f"DEFECT {task.get_name()}: {error!r}\n")
            sys.stderr.flush()


async def coordinate(lives: Lives) -> None:
    """Claim sessions that hints name."""
    actor = lives.actor
    while True:
        await actor.quiet()
        hint = await actor.substrate.hints.wait(actor.name, sessions=not lives.full, timeout_s=0.2)
        if hint is not None and ids.kind_of(hint) is Kind.SESSION:
            await lives.take(hint, None)


async def work(lives: Lives) -> None:
    """Claim what wake-ups name."""
    actor = lives.actor
    while True:
        await actor.quiet()
        found = None if lives.full else await actor.redis.blpop([WAKE_UPS], timeout=0.2)
        if found is None:
            await asyncio.sleep(SCAN_SECONDS)
            continue
        task_id, _, run = text(found[1]).partition(" ")
        await lives.take(TaskId(task_id), int(run))


async def supervise(lives: Lives) -> None:
    """Settle, stop what is overdue, send wake-ups again, take ended sessions off the list."""
    actor = lives.actor
    while True:
        await actor.quiet()
        for session, version in (await actor.substrate.sessions.listed()).items():
            await _look_after(actor, session, version)
        await asyncio.sleep(SCAN_SECONDS)


async def _look_after(actor: Actor, session: TaskId, version: int) -> None:
    records = actor.substrate.records
    tasks = await records.open_tasks(session)
    if not tasks:
        await actor.substrate.sessions.seal_and_unlist(session, version)
    for late in await records.overdue(session):
        op = f"limit:{late.task_id}:{late.run}"
        await records.request_stop(late.task_id, kind="limit", reason="time limit", op=op, run=late.run)
    for task in tasks:
        await records.settle_stop(task)
        again = await records.resend(task)
        if again is None:
            continue
        if ids.kind_of(task) is Kind.SESSION:
            await actor.substrate.hints.push_sessions(task)
        else:
            await actor.wake(task, again.run)


async def ask(lives: Lives) -> None:
    """Submit sessions, send to them, answer them, stop some."""
    actor = lives.actor
    known: list[TaskId] = []
    while not await actor.quiet():
        if len(known) < SESSIONS and chance(0.4):
            session = ids.new_session()
            task = new_task(session, None, SessionSpec(prompt="stress"), limits=Limits(seconds=60))
            await actor.substrate.records.create(task, parent_token=None)
            known.append(session)
        elif known and chance(0.5):
            await actor.answer(random.choice(known[-RECENT:]))
        elif known and chance(0.75):
            await actor.send(random.choice(known[-RECENT:]), ids.nonce(), None)
        elif known:
            stop = actor.substrate.records.request_stop
            await stop(random.choice(known[-RECENT:]), kind="user", reason="user", op=ids.nonce())
        await asyncio.sleep(SCAN_SECONDS * 2)


async def _forever(duty: Callable[[Lives], Awaitable[None]], lives: Lives) -> None:
    while True:
        with contextlib.suppress(ServerUnreachable, RedisConnectionError):
            await duty(lives)
            return


def main(live: Callable[[Lives, Actor, Lease], Awaitable[None]], arguments: Sequence[str]) -> None:
    """Entry point of a process: role, name, URL, lease in milliseconds, seed, mutation."""
    role, name, url, lease_ms, seed, mutation = arguments
    random.seed(f"{seed} {name}")
    duties = {"coordinator": coordinate, "worker": work, "supervisor": supervise, "client": ask}

    async def run() -> None:
        scripts = ScriptLibrary.mutated(MUTATIONS[mutation])
        connection = Faulty.to(url, keys=Keys(), scripts=scripts)
        assert isinstance(connection, Faulty)
        substrate = Substrate(connection, Terms(int(lease_ms)))
        actor = Actor(name, substrate, Redis.from_url(url, protocol=2, socket_timeout=None), connection)
        await _forever(duties[role], Lives(actor, live))

    asyncio.run(run())


async def effects(redis: Redis) -> dict[str, int]:
    """tool_use id → how often its outside effect happened."""
    found: dict[str, int] = {}
    for tool in texts(await redis.lrange(EFFECTS, 0, -1)):
        found[tool] = found.get(tool, 0) + 1
    return found


async def told(redis: Redis) -> list[tuple[str, StoredAnswer]]:
    """Questions with the answers that anybody was told to be theirs."""
    return [(pair[0], pair[1]) for pair in map(orjson.loads, texts(await redis.lrange(TOLD, 0, -1)))]
