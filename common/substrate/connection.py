"""The way to Redis: two clients, scripts by their SHA, patience with a server that restarts. Knows no operation.

Above: every file of the substrate. Below: redis-py. Replies leave here as str, int, tuples and dicts only.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import orjson
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celeriac.common.clock import boottime
from celeriac.common.contract.errors import ScriptRefused, ServerUnreachable, UsageError
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.patience import PROCESS, Outage, Patience, backoff
from celeriac.common.substrate.scripts import Script, ScriptLibrary

POOL_SIZE = 64
"""Connections that the agents of one process share; a script takes well under a millisecond, so few are ever busy."""
WAITING_POOL_SIZE = 1000
"""Blocked reads of one process: each follower holds a connection while it waits (redis-py's own limit is 100)."""
SOCKET_TIMEOUT_SECONDS = 5.0
"""A reply that takes longer is asked for again."""
_ANCESTORS_KEPT = 50_000
"""Cached parents; about 10 MB when full."""
BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)
"""The server did not answer: whether the script ran is not known."""
_LOCKED = (AuthenticationError, AuthorizationError)
"""It answered, and does not know us: redis-py calls this a broken connection, but no patience helps."""
_UNWILLING = (ReadOnlyError, OutOfMemoryError, MasterDownError, ClusterDownError, TryAgainError)
_UNWILLING_WORDS = ("MISCONF", "NOREPLICAS", "OOM ")
"""Answers of a server that writes nothing just now: a replica after a failover, a full memory or disk. Asked again."""
_DEMOTED = "UNBLOCKED"
"""What a blocked reader is told when its server becomes a replica."""

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
T = TypeVar("T")


def text(reply: object) -> str:
    """A bulk string; nil is the empty text."""
    return reply.decode() if isinstance(reply, bytes) else "" if reply is None else str(reply)


def texts(reply: object) -> tuple[str, ...]:
    """A list or set of bulk strings."""
    return tuple(text(item) for item in cast("Iterable[object]", reply))


def mapping(reply: object) -> dict[str, str]:
    """A hash."""
    return {text(key): text(value) for key, value in cast("dict[object, object]", reply).items()}


def number(reply: object) -> int:
    """An integer reply; nil is 0."""
    return int(text(reply) or "0")


@dataclass(frozen=True, slots=True)
class Answer:
    """A script's answer: its status, its small fields, and what was passed through unread."""

    status: str
    fields: JsonObject
    extra: str = ""

    def count(self, name: str) -> int:
        """An integer field; 0 when absent."""
        return int(cast("int", self.fields.get(name, 0)))

    def word(self, name: str) -> str:
        """A text field; empty when absent."""
        return str(self.fields.get(name, ""))

    def part(self, name: str) -> JsonObject | None:
        """An object field, or None."""
        return cast("JsonObject | None", self.fields.get(name))


def _answer(reply: object) -> Answer:
    """Read `json` or `[json, extra]`."""
    parts = [*cast("list[object]", reply), None] if isinstance(reply, list) else [reply, None]
    fields = cast("JsonObject", orjson.loads(text(parts[0])))
    return Answer(str(fields["status"]), fields, text(parts[1]))


class Connection:
    """One process's connections to one server."""

    def __init__(
        self,
        client: Redis,
        blocking: Redis,
        *,
        keys: Keys,
        scripts: ScriptLibrary,
        where: str,
        patience: Patience = PROCESS,
    ) -> None:
        """`blocking`: a client without a read timeout, for BLPOP and XREAD BLOCK. `where`: the address, for errors."""
        self.client = client
        self.blocking = blocking
        self.keys = keys
        self.where = where
        self.outage = Outage(where, patience.tell)
        self._patience = patience
        self._scripts = scripts
        self._ancestors: dict[TaskId, tuple[TaskId, ...]] = {}
        self._failed_at = -math.inf

    @classmethod
    def to(cls, url: str, *, keys: Keys, scripts: ScriptLibrary, patience: Patience = PROCESS) -> "Connection":
        """Prepare connections to `url`; nothing is sent. Raises UsageError if it is no Redis URL."""
        # Repeating is ours to do (with the same op id, within the lease), so the client's own retries are off.
        retry = Retry(NoBackoff(), 0)
        try:
            pool, waiting = (
                kind.from_url(
                    url,
                    max_connections=size,
                    socket_timeout=None,  # `_send` has its own, since redis-py's loses cancellations
                    socket_connect_timeout=SOCKET_TIMEOUT_SECONDS,
                    retry=retry,
                    protocol=2,
                )
                for kind, size in ((BlockingConnectionPool, POOL_SIZE), (ConnectionPool, WAITING_POOL_SIZE))
            )
        except ValueError as error:
            raise UsageError(f"{url!r} is not a Redis URL (redis://host:port/db): {error}") from error
        where = url.rpartition("@")[2]
        pools = Redis(connection_pool=pool), Redis(connection_pool=waiting)
        return cls(*pools, keys=keys, scripts=scripts, where=where, patience=patience)

    async def ping(self) -> None:
        """One round trip. Raises ServerUnreachable."""
        try:
            await self._send(self.client, ("PING",))
        except (*BROKEN, RedisError) as error:
            raise self.unreachable(error) from error

    async def reach(self, seconds: float) -> None:
        """Wait up to `seconds` for a first answer; longer for a server that is there and reads its data.

        Raises ServerUnreachable."""
        try:
            await self._first_answer(seconds)
        except ServerUnreachable as error:
            if not isinstance(error.__cause__, BusyLoadingError):
                raise
            await self._first_answer(self._patience.seconds)

    async def _first_answer(self, seconds: float) -> None:
        try:
            await self.patiently(lambda: self._send(self.client, ("PING",)), seconds=seconds)
        except RedisError as error:  # an answer, but not to a ping: no such database, no permission
            raise self.unreachable(error) from error

    async def aclose(self) -> None:
        """Close both clients and their pools."""
        for client in (self.client, self.blocking):
            await client.aclose()
            await client.connection_pool.disconnect()

    def answering_ms(self) -> float:
        """For how long no request of this process was left unanswered."""
        return (boottime() - self._failed_at) * 1000

    def unreachable(self, error: BaseException) -> ServerUnreachable:
        """The error with the way out."""
        if self.outage.met:
            return ServerUnreachable(
                f"the server at {self.where} answers no longer ({_why(error)}); whether the last request was carried "
                "out is not known: look before you repeat it"
            )
        return ServerUnreachable(
            f"no Redis answers at {self.where} ({error}): start one (`redis-server`), name another with "
            "CELERIAC_REDIS_URL, or use `celeriac run`, which brings its own"
        )

    async def command(self, *command: Argument) -> object:
        """One plain command, repeated with patience: only for commands that may run twice."""
        return await self.patiently(lambda: self._send(self.client, command))

    async def spread(self, commands: Sequence[Command]) -> list[object]:
        """Several commands in one round trip, each on its own. May run twice."""
        return await self.patiently(lambda: self._pipeline(commands)) if commands else []

    async def blocked(self, *command: Argument, seconds: float) -> object:
        """A blocking command that the server itself ends after `seconds`. Raises ServerUnreachable at once."""
        try:
            # A frozen server never ends the block; waiting much longer than agreed means that it is gone.
            answer = await self._send(self.blocking, command, seconds=seconds + SOCKET_TIMEOUT_SECONDS)
        except BROKEN as error:  # TimeoutError is an OSError
            waited = SOCKET_TIMEOUT_SECONDS if isinstance(error, TimeoutError) else 0.0
            self.outage.missed(waited=waited, patience=self._patience.seconds)
            raise self.unreachable(error) from error
        self.outage.answered()
        return answer

    async def script(
        self, name: str, task_id: TaskId, header: JsonObject, *large: Argument, sender: TaskId | None = None
    ) -> Answer:
        """Run a record script with patience, for requests that are idempotent by id."""
        ancestors = await self.ancestors(task_id)
        keys = self.keys.script(task_id, ancestors, sender)
        return await self.patiently(lambda: self.once(name, keys, {**header, "task": task_id}, *large))

    async def once(self, name: str, keys: Sequence[str], header: JsonObject, *large: Argument) -> Answer:
        """Run a script one time, `header` being its small arguments. Raises what redis-py raises, and ScriptRefused."""
        return await self.run(name, keys, orjson.dumps(header), *large)

    async def run(self, name: str, keys: Sequence[str], *arguments: Argument) -> Answer:
        """EVALSHA, or EVAL for a server that does not know the script yet."""
        script = self._scripts[name]
        try:
            return _answer(await self._evaluate(script, keys, arguments))
        except RedisConnectionError:  # BusyLoadingError is one
            raise
        except ResponseError as error:
            raise ScriptRefused(f"{name}.lua: {error}") from error

    async def _evaluate(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> object:
        rest = (len(keys), *keys, *arguments)
        try:
            return await self._send(self.client, ("EVALSHA", script.sha, *rest))
        except NoScriptError:
            return await self._send(self.client, ("EVAL", script.text, *rest))

    async def ancestors(self, task_id: TaskId) -> tuple[TaskId, ...]:
        """Parent and grandparent. They never change, so a known task is looked up once a process."""
        if (known := self._ancestors.get(task_id)) is not None:
            return known
        kind, chain = cast("list[object]", await self.command("HMGET", self.keys.task(task_id, "t"), "kind", "chain"))
        found = tuple(TaskId(link[0]) for link in orjson.loads(text(chain) or "[]"))
        if kind is not None:
            self.remember(task_id, found)
        return found

    def remember(self, task_id: TaskId, ancestors: tuple[TaskId, ...]) -> None:
        """Keep the ancestors of a task that was just seen."""
        if len(self._ancestors) >= _ANCESTORS_KEPT:
            self._ancestors.clear()
        self._ancestors[task_id] = ancestors

    async def patiently(self, attempt: Callable[[], Awaitable[T]], *, seconds: float | None = None) -> T:
        """Repeat while the server does not answer. Raises ServerUnreachable after `seconds`, None: this connection's.

        The one who is told is told once for all requests that wait."""
        bound = self._patience.seconds if seconds is None else seconds
        pauses = backoff()
        last: BaseException = TimeoutError("no answer")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound):
                while True:
                    begun = time.monotonic()
                    try:
                        answer = await attempt()
                    except _LOCKED as error:
                        raise self.unreachable(error) from error
                    except BROKEN as error:
                        last = error
                    else:
                        self.outage.answered()
                        return answer
                    self.outage.missed(waited=time.monotonic() - begun, patience=bound)
                    await asyncio.sleep(next(pauses))
        raise self.unreachable(last) from last

    async def _send(
        self, client: Redis, command: Sequence[Argument], *, seconds: float = SOCKET_TIMEOUT_SECONDS
    ) -> object:
        """One command. The time-out is ours: with a socket_timeout redis-py sends each command under asyncio.wait_for,
        which before Python 3.12 swallows a cancellation that comes as the sending ends; and it costs a task."""
        try:
            async with asyncio.timeout(seconds):
                return await client.execute_command(*command)  # type: ignore[no-untyped-call]  # untyped in redis-py
        except ResponseError as error:
            raise await self._refused(error) from error
        except BROKEN:
            self._failed_at = boottime()
            raise

    async def _pipeline(self, commands: Sequence[Command]) -> list[object]:
        async with self.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            try:
                async with asyncio.timeout(SOCKET_TIMEOUT_SECONDS):
                    return cast("list[object]", await pipeline.execute())
            except ResponseError as error:
                raise await self._refused(error) from error
            except BROKEN:
                self._failed_at = boottime()
                raise

    async def _refused(self, error: ResponseError) -> RedisError:
        """The error to raise: a refusal that time may lift counts as no answer.

        A master that has become a replica keeps its connections; only new ones find its successor (C89)."""
        if isinstance(error, ReadOnlyError) or str(error).startswith(_DEMOTED):
            for client in (self.client, self.blocking):
                await client.connection_pool.disconnect(inuse_connections=False)
        if not isinstance(error, _UNWILLING) and not str(error).startswith((*_UNWILLING_WORDS, _DEMOTED)):
            return error
        self._failed_at = boottime()  # leases could not be renewed meanwhile
        return RedisConnectionError(str(error))


def _why(error: BaseException) -> str:
    """In a few words; redis-py's texts are sentences."""
    return "it does not reply" if isinstance(error, TimeoutError | RedisTimeoutError) else str(error).rstrip(".")
