"""The Messages API by way of its SDK: bytes in, raw events out (MODEL_API). The only importer of anthropic and httpx2.

The SDK gives credentials, connections, timeouts and typed errors. Encoding, retries and accumulation are ours.
Importing this module costs 3 s of CPU: once per process, before any fork.
"""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from email.utils import parsedate_to_datetime

import httpx2
from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic, AsyncStream
from anthropic.types import Message, RawMessageStreamEvent

from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm.accumulate import Accumulator
from celeriac.common.llm.client import (
    BadCredentials,
    BadRequest,
    BrokenStream,
    ModelEvent,
    ModelFailure,
    NoSuchModel,
    Overfull,
    Overloaded,
    RateLimited,
    Request,
    ServerFailed,
    TooLarge,
    TooLong,
    Unreachable,
)
from celeriac.common.llm.request_body import encode
from celeriac.common.llm.sse import SseSplitter
from celeriac.common.llm.waiting import Interrupted, unless_aborted
from celeriac.common.llm.wire import loads_object

DEFAULT_BASE_URL = "https://api.anthropic.com"
READ_TIMEOUT_SECONDS = 75.0
"""Without a byte for so long a stream is dead: live ones send pings (MODEL_API: 60 to 90 s)."""
ANSWER_LIMIT_SECONDS = 1800.0
"""The longest that one answer may take, pings or not."""
CONNECT_TIMEOUT_SECONDS = 15.0
END_SECONDS = 0.2
"""From message_stop to the end of the body: as a rule they come together; a server that dawdles is not waited for."""
MAX_CONNECTIONS = 1000
"""Agents of one process that may stream at once; twice the 500 that it is built for (MODEL_API, target)."""
LONGEST_RETRY_AFTER = 3600.0
"""Seconds. A server that says more is asked again all the same: nobody would wait for it unseen."""
_TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
_OVERFULL = re.compile(r"input length and `?max_tokens`? exceed context limit: (\d+) \+ (\d+) > (\d+)")
_TRANSIENT = frozenset({408, 429, 499})
"""4xx that say nothing about the request itself."""

Stream = AsyncStream[RawMessageStreamEvent]


class AnthropicClient:
    """A ModelClient on a Messages API server."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        read_timeout: float = READ_TIMEOUT_SECONDS,
        answer_limit: float = ANSWER_LIMIT_SECONDS,
        standin: bool = False,
        raw: bool = False,
    ) -> None:
        """Times in seconds. `standin`: the server is one of ours, tell it which call this is. `raw`: RawEvents too."""
        self._standin = standin
        self._raw = raw
        self._answer_limit = answer_limit
        timeout = httpx2.Timeout(read_timeout, connect=CONNECT_TIMEOUT_SECONDS)
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        self._sdk = (
            AsyncAnthropic(
                api_key=api_key,
                base_url=base_url or DEFAULT_BASE_URL,
                max_retries=0,
                timeout=timeout,
                http_client=httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=True),
            )
            if api_key
            else None
        )

    async def aclose(self) -> None:
        """Close all connections."""
        if self._sdk is not None:
            await self._sdk.close()

    async def stream(self, request: Request, cancel: AbortNode) -> AsyncGenerator[ModelEvent, None]:
        """Ask once. Raises ModelFailure; an abort ends the wait at once and closes the connection."""
        deadline = asyncio.get_running_loop().time() + self._answer_limit
        try:
            stream = await unless_aborted(cancel, self._open(request))
        except Interrupted:
            return
        accumulator = Accumulator(raw=self._raw)
        async with aclosing(stream.response), aclosing(_chunks(stream, cancel, deadline, accumulator)) as chunks:
            splitter = SseSplitter()
            async for chunk in chunks:
                for name, data in splitter.feed(chunk):
                    if cancel.aborted:
                        return
                    for event in _fed(accumulator, name, data):
                        yield event
                if accumulator.finished:
                    await _to_its_end(chunks)
                    return
        if not cancel.aborted:
            accumulator.close()

    async def _open(self, request: Request) -> Stream:
        """Send the request and wait for the headers of the answer."""
        if self._sdk is None:
            raise BadCredentials("no key for the model: set one in the settings (`llm`) or in ANTHROPIC_API_KEY")
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if self._standin:
            headers |= {"X-Celeriac-Call": request.key.header(), "X-Celeriac-Session": request.key.session}
        try:
            return await self._sdk.post(
                "/v1/messages",
                cast_to=Message,
                content=encode(request),
                options={"headers": headers},
                stream=True,
                stream_cls=Stream,
            )
        except APIStatusError as error:
            raise failure_of(error) from error
        except (APIConnectionError, httpx2.TransportError) as error:
            raise Unreachable(f"the model's server did not answer: {error.__cause__ or error}") from error


def _fed(accumulator: Accumulator, name: str, data: str) -> list[ModelEvent]:
    try:
        value = loads_object(data) if data else {}
    except ValueError as error:
        raise BrokenStream(accumulator.after, f"a malformed event {name}: {error}") from error
    return accumulator.feed(name, value)


async def _chunks(
    stream: Stream, cancel: AbortNode, deadline: float, accumulator: Accumulator
) -> AsyncGenerator[bytes, None]:
    """The body as it arrives; ends early on an abort. Raises BrokenStream."""
    body = stream.response.aiter_bytes()
    while True:
        try:
            chunk = await unless_aborted(cancel, _next(body))
        except Interrupted:
            return
        except httpx2.ReadTimeout as error:
            raise BrokenStream(accumulator.after, "nothing came any more") from error
        except (httpx2.TransportError, httpx2.StreamError, httpx2.DecodingError) as error:
            raise BrokenStream(
                accumulator.after, f"the connection broke: {str(error) or type(error).__name__}"
            ) from error
        if chunk is None:
            return
        if asyncio.get_running_loop().time() > deadline:  # a look a chunk is enough: silence has a limit of its own
            raise BrokenStream(accumulator.after, "the answer took longer than its limit")
        yield chunk


async def _to_its_end(chunks: AsyncIterator[bytes]) -> None:
    """Take what follows message_stop, which is nothing but the end: only then the connection can be used again, and a
    new one would cost each turn a TLS handshake."""
    with suppress(BrokenStream, TimeoutError):  # the answer is whole already
        async with asyncio.timeout(END_SECONDS):
            async for _ in chunks:
                pass


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    return await anext(body, None)


def failure_of(error: APIStatusError) -> ModelFailure:
    """What an answer with an error status means."""
    status, message = error.status_code, error.api_message or error.message
    match status:
        case 400:
            return _bad_request(message)
        case 401 | 403:
            return BadCredentials(f"the model's server refused the key: {message}")
        case 404:
            return NoSuchModel(f"{message}; check the model's name and the server's address (llm in the settings)")
        case 413:
            return TooLarge(message)
    if 400 <= status < 500 and status not in _TRANSIENT:
        return BadRequest(message)
    kind = {429: RateLimited, 529: Overloaded}.get(status, ServerFailed)
    return kind(f"{status}: {message}", _retry_after(error))


def _bad_request(message: str) -> ModelFailure:
    if found := _TOO_LONG.search(message):
        return TooLong(int(found[1]), int(found[2]))
    if found := _OVERFULL.search(message):
        return Overfull(int(found[1]), int(found[2]), int(found[3]))
    return BadRequest(message)


def _retry_after(error: APIStatusError) -> float | None:
    """Seconds, at most LONGEST_RETRY_AFTER; None if the server gave none. It may name a number or a date."""
    value = error.response.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        seconds = _until(value)
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER) if math.isfinite(seconds) else None


def _until(date: str) -> float:
    """Seconds until an HTTP date; not finite for what is none."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return math.nan
