"""The core of a lease: one lock, op ids, repetition, the heartbeat, and what the server's answers tell.

Every write carries an op id and is repeated with it until the server answers or the local clock runs out. A write that
was begun is finished even if its caller is cancelled, so the length of the transcript stays known.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from celeriac.common.clock import boottime
from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Stop
from celeriac.common.lifetime.cancel import AbortNode, AbortReason
from celeriac.common.substrate.connection import BROKEN, Answer, Argument, Connection
from celeriac.common.substrate.local_clock import LocalClock
from celeriac.common.substrate.patience import backoff
from celeriac.common.substrate.reading import stop_of_answer
from celeriac.common.substrate.types import Ack, Grant
from celeriac.common.testing.points import point

_ENDINGS = {("finish", "OK"), ("finish", "STOPPED"), ("finish", "ALREADY"), ("park", "OK")}


class Ownership:
    """Holding one run of one task, until it is lost, finished or parked."""

    def __init__(self, connection: Connection, *, lease_ms: int, silent_ms: int, grant: Grant, answer: Answer) -> None:
        """Starts the local clock; `answer` is the claim's; a renewal notices a silence of `silent_ms`."""
        self.grant = grant
        self.task_id = grant.task_id
        self.run = grant.run
        self.token = grant.token
        self.tlen = grant.tlen
        self.unread = 0
        """Messages and notifications, as of the last answer."""
        self.open_children = 0
        self.stop: Stop | None = None
        """Set once the run is effectively stopped."""
        self.node = AbortNode()
        """Aborted with LEASE_LOST when the lease is lost; with USER, TIME_LIMIT or PARENT when the run is stopped."""
        self.ended = False
        """Finished or parked: nothing is owned any more, and nothing was lost."""
        self.lost = False
        """Nothing may be done any more; also set when the node was aborted for a stop before."""
        self.renewed_at = grant.sent_at
        """When the last renew that succeeded (or the claim) was sent: CLOCK_BOOTTIME, seconds."""
        self.on_renewed: list[Callable[[], None]] = []
        """Called after each renew that succeeded."""
        self._connection = connection
        self._ttl = lease_ms
        self._silent_ms = silent_ms
        self._lock = asyncio.Lock()
        self._writes = 0
        self._ask_again = False
        """A renew overlapped with the write that is under way."""
        self._running: set[asyncio.Task[Answer]] = set()
        self._poked = asyncio.Event()
        self._news = asyncio.Event()
        self._clock = LocalClock(lease_ms, grant.sent_at, self._lose)
        self._hear(answer)

    def may_act(self) -> bool:
        """Whether the local clock allows a model call or a tool start now."""
        return not (self.lost or self.ended) and self._clock.remaining() > 0

    def poke(self) -> None:
        """Have the heartbeat renew at once: somebody sent a hint."""
        self._poked.set()

    async def changed(self) -> None:
        """Return when something is unread, the run is stopped, the number of open children has changed since this was
        called, or the node is aborted or the lease has ended."""
        before = self.open_children
        while not (self.unread or self.stop or self.node.aborted or self.ended or self.open_children != before):
            self._news.clear()
            await self._news.wait()

    async def heartbeat(self) -> None:
        """Renew every third of the lease, and at once after `poke`, until cancelled; returns when nothing is owned."""
        while not (self.ended or self.lost):
            with contextlib.suppress(TimeoutError):  # nobody poked: it is time
                async with asyncio.timeout(self._ttl / 3000):
                    await self._poked.wait()
            self._poked.clear()
            with contextlib.suppress(LeaseLost):  # the node is aborted: whoever works under it hears that
                await self.renew()

    async def renew(self) -> Ack:
        """Extend the lease. Raises LeaseLost."""
        before = self._writes
        answer, sent_at = await self._persist("renew", {"ttl": self._ttl, "silent_ms": self._silent_ms}, ())
        self._clock.renewed(sent_at)
        self.renewed_at = sent_at
        overlapped = self._writes != before or self._lock.locked()
        # A write that ran at the same time may know newer counts than this answer: keep those, and ask again.
        self._hear(answer, counts=not overlapped)
        self._ask_again = self._lock.locked()  # by the end of that write: it may take long
        if overlapped and not self._ask_again:
            self.poke()
        for callback in tuple(self.on_renewed):
            callback()
        return _ack(answer)

    async def _write(self, name: str, header: JsonObject, large: Sequence[Argument] = ()) -> Answer:
        """One owner's write. Raises LeaseLost."""
        task = asyncio.create_task(self._write_alone(name, header, large), name=f"{name} of {self.task_id}")
        self._running.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    async def _write_acked(self, name: str, header: JsonObject, large: Sequence[Argument] = ()) -> Ack:
        return _ack(await self._write(name, header, large))

    def _written(self, task: "asyncio.Task[Answer]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled; the node tells of a lost lease

    async def _write_alone(self, name: str, header: JsonObject, large: Sequence[Argument]) -> Answer:
        async with self._lock:
            self._writes += 1
            op = f"{self.token}:{self._writes}"
            answer, _ = await self._persist(name, {**header, "op": op, "at": self.tlen}, large)
            self._writes += 1
            if "tlen" in answer.fields:
                self.tlen = answer.count("tlen")
            if (name, answer.status) in _ENDINGS:
                self._end()
            self._hear(answer)
            if self._ask_again:
                self.poke()
            return answer

    async def _persist(self, name: str, header: JsonObject, large: Sequence[Argument]) -> tuple[Answer, float]:
        """Repeat one script until it is answered or the local clock runs out; and when the answered one was sent."""
        keys = self._connection.keys.script(self.task_id, await self._connection.ancestors(self.task_id))
        whole: JsonObject = {**header, "task": self.task_id, "token": self.token}
        pauses = backoff()
        repeated = False
        while self.may_act():
            try:
                await point(f"{name}.before", self.task_id)
                sent_at = boottime()
                async with asyncio.timeout(self._clock.remaining()):
                    answer = await self._connection.once(name, keys, whole, *large)
                await point(f"{name}.after", self.task_id)
            except BROKEN:  # TimeoutError is one: then the local clock ends the loop
                repeated = True
                await asyncio.sleep(next(pauses))
                continue
            return await self._owned(name, answer, repeated=repeated), sent_at
        if not self.ended:
            self._lose()
        raise LeaseLost(f"{self.task_id}: {self.token} owns it no longer")

    async def _owned(self, name: str, answer: Answer, *, repeated: bool) -> Answer:
        if answer.status not in {"LOST", "CONFLICT"}:
            return answer
        if name == "park" and repeated:
            return Answer("OK", {})  # the first one's reply was lost, or somebody else owns it: the same to the caller
        if name == "renew":
            async with self._lock:  # a finish or park that is under way explains it; its answer comes first
                pass
        if not self.ended:
            self._lose()
        raise LeaseLost(f"{self.task_id}: {self.token} owns it no longer ({name}: {answer.status})")

    def _lose(self) -> None:
        self.lost = True
        self._clock.stop()
        self.node.abort(AbortReason.LEASE_LOST)
        self._wake()

    def _end(self) -> None:
        self.ended = True
        self._clock.stop()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._poked.set()

    def _hear(self, answer: Answer, *, counts: bool = True) -> None:
        """Take over what an answer tells."""
        if counts and "unread" in answer.fields:
            self.unread = answer.count("unread")
            self.open_children = answer.count("open_children")
        part = answer.part("stop")
        if part is not None and self.stop is None:
            self.stop = stop_of_answer(part)
            self.node.abort(_reason(part))
        self._news.set()


def _reason(stop: JsonObject) -> AbortReason:
    if stop["own"] is not True:
        return AbortReason.PARENT
    return AbortReason.TIME_LIMIT if stop["kind"] == "limit" else AbortReason.USER


def _ack(answer: Answer) -> Ack:
    return Ack(
        stop=stop_of_answer(answer.part("stop")),
        unread=answer.count("unread"),
        open_children=answer.count("open_children"),
        tlen=answer.count("tlen"),
    )
