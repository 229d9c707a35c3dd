"""The same client for programs without an event loop: one loop in the background, and typed delegation to it.

Holds no logic of its own. Usable from any number of threads; a Ctrl-C ends the call that it hits, in the loop too. It
also works where an event loop runs (a notebook), which then waits meanwhile.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event as Flag
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from celeriac.common.contract.errors import ClientClosed
from celeriac.common.contract.events import Event
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.messages import Line
from celeriac.common.contract.task import Record
from celeriac.common.settings import Settings
from celeriac.common.substrate.events import START
from celeriac.common.substrate.patience import log_it
from celeriac.common.substrate.types import Sent
from celeriac.coordinator.batch import PARALLEL, Asked
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions, JobResult
from celeriac.coordinator.stopping import StopLine

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """Calls into the loop of another thread, which end when the caller is interrupted or the client is closed."""

    def __init__(self, portal: BlockingPortal) -> None:
        """`portal` is stopped by whoever made it, after `close`."""
        self._portal = portal
        self._waiting: set[Future[Any]] = set()
        self._closed = Flag()

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it in the loop and wait for its answer. Raises ClientClosed."""
        if self._closed.is_set():
            raise ClientClosed("the client is closed")
        future = self._portal.start_task_soon(partial(function, *args, **kwargs))
        self._waiting.add(future)
        if self._closed.is_set():  # meanwhile, and `close` may have looked before
            future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed while this call waited") from None
        finally:
            self._waiting.discard(future)
            future.cancel()  # after a Ctrl-C it still runs; else this does nothing

    def close(self) -> None:
        """End every call that other threads still wait for, and take no more."""
        self._closed.set()
        for future in tuple(self._waiting):
            future.cancel()


class Stream(Generic[T]):
    """An async generator read from outside its loop. Of one thread; `close`, or a `with` block, ends it early.

    One that is dropped half-way needs neither: the loop ends the generator when it is collected.
    """

    def __init__(self, background: Background, items: AsyncGenerator[T, None]) -> None:
        """`items` runs in the loop of `background`."""
        self._background = background
        self._items = items

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self._background.call(self._items.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Read no more. Does nothing once the client is closed, which has ended it."""
        try:
            self._background.call(self._items.aclose)
        except ClientClosed:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncClient:
    """A connection to one server, for threads. Made with `SyncClient.connect`; each method is that of `Client`."""

    def __init__(self, client: Client, background: Background) -> None:
        """`client` belongs to the loop of `background`."""
        self._client = client
        self._background = background

    @classmethod
    @contextmanager
    def connect(
        cls, to: str | Settings | None = None, *, tell: Callable[[str], None] = log_it
    ) -> Iterator["SyncClient"]:
        """As `Client.connect`. Leaving the block ends the calls of other threads with ClientClosed.

        `tell` is called in the background thread: it must not use the client."""
        with start_blocking_portal("asyncio", name="celeriac client") as portal:
            background = Background(portal)
            with portal.wrap_async_context_manager(Client.connect(to, tell=tell)) as client:
                try:
                    yield cls(client, background)
                finally:
                    background.close()

    @overload
    def submit(
        self, prompt: str | None, options: JobOptions | None = None, *, wait: Literal[False] = False
    ) -> "SyncJob": ...
    @overload
    def submit(self, prompt: str | None, options: JobOptions | None = None, *, wait: Literal[True]) -> JobResult: ...

    def submit(
        self, prompt: str | None, options: JobOptions | None = None, *, wait: bool = False
    ) -> "SyncJob | JobResult":
        """Check and store a job; its handle, or with `wait` its result when it has ended."""
        job = SyncJob(self, self._background.call(self._client.submit, prompt, options).id)
        return job.result() if wait else job

    def batch(self, jobs: Iterable[Asked], *, parallel: int = PARALLEL) -> Stream[tuple[int, JobResult]]:
        """Run many jobs; (number from 1, result) of each when it ends."""
        return Stream(self._background, self._client.batch(tuple(jobs), parallel=parallel))

    def job(self, text: str) -> "SyncJob":
        """The handle of a known id. Raises BadId."""
        return SyncJob(self, self._client.job(text).id)

    def list(self, offset: int = 0, count: int = 50) -> tuple[Record, ...]:
        """A page of the sessions, newest first."""
        return self._background.call(self._client.list, offset, count)

    def get(self, task_id: TaskId) -> Record:
        """One record. Raises NotFound."""
        return self._background.call(self._client.get, task_id)

    def tree(self, task_id: TaskId) -> tuple[Record, ...]:
        """The records of the session that this task belongs to. Raises NotFound."""
        return self._background.call(self._client.tree, task_id)

    def transcript(self, task_id: TaskId, start: int = 0) -> tuple[Line, ...]:
        """The stored lines from `start` on. Raises NotFound."""
        return self._background.call(self._client.transcript, task_id, start)

    def output(self, task_id: TaskId) -> str:
        """The live output so far. Raises NotFound."""
        return self._background.call(self._client.output, task_id)

    def follow(self, task_id: TaskId, after: str = START) -> Stream[Event]:
        """The events of the task's session after the event `after`, until it has ended and all are read."""
        return Stream(self._background, self._client.follow(task_id, after))

    def wait(self, task_id: TaskId) -> JobResult:
        """Wait until this task has ended. Raises NotFound."""
        return self._background.call(self._client.wait, task_id)

    def send(self, task_id: TaskId, text: str) -> Sent:
        """Send a message to a session or a task. Raises Refused, UsageError, NotFound."""
        return self._background.call(self._client.send, task_id, text)

    def stop(self, task_id: TaskId, reason: str) -> tuple[StopLine, ...]:
        """Stop a task and everything below it; one line for each."""
        return self._background.call(self._client.stop, task_id, reason)


@dataclass(frozen=True, slots=True)
class SyncJob:
    """The handle of one job."""

    client: SyncClient
    id: TaskId

    def follow(self, after: str = START) -> Stream[Event]:
        """The events of the whole tree: `for event in job.follow(): …`."""
        return self.client.follow(self.id, after)

    def result(self) -> JobResult:
        """Wait for the end."""
        return self.client.wait(self.id)

    def send(self, text: str) -> Sent:
        """Send a message. Raises Refused."""
        return self.client.send(self.id, text)

    def stop(self, reason: str = "user") -> tuple[StopLine, ...]:
        """Stop it with everything below."""
        return self.client.stop(self.id, reason)
