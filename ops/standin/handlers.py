"""The stand-in's HTTP side: real server-sent events, with the faults that a script orders."""

import asyncio
import socket
import struct
from typing import Protocol, TypeAlias

import orjson
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

from celeriac.common.contract.json import JsonObject
from celeriac.common.llm.playback import Playback
from celeriac.common.llm.script import Fault
from celeriac.common.llm.sse_script import SseEvent
from celeriac.ops.standin.exchange import Answers, Caller, Refused, messages_sha
from celeriac.ops.standin.journal import Journal

RESET_DELAY_SECONDS = 0.05
"""Before a reset: what was sent must have been taken, since a reset discards the rest."""
_PING = SseEvent("ping", {"type": "ping"})
_LINGER_ZERO = struct.pack("ii", 1, 0)
Holds: TypeAlias = dict[asyncio.Event, str]
"""The streams held open, each with its path; setting the event lets it go on."""


class Services(Protocol):
    """What handlers need of their server."""

    answers: Answers
    journal: Journal
    holds: Holds
    ping_seconds: float

    def keep_body(self, caller: Caller, attempt: int, body: bytes) -> None:
        """Store a request body, if anybody wants to see it."""
        ...

    def release(self, path: str | None = None) -> int:
        """Let held streams go on."""
        ...


class JsonHandler(RequestHandler):
    """Errors as the real API words them."""

    services: Services

    def initialize(self, services: Services) -> None:
        """Called for each request."""
        self.services = services

    def refuse(self, refused: Refused) -> None:
        """Answer with an error."""
        self.set_status(refused.status, reason="Refused")
        if refused.retry_after is not None:
            self.set_header("retry-after", f"{refused.retry_after:g}")
        self.reply(refused.body())

    def reply(self, value: JsonObject) -> None:
        """Answer with JSON."""
        self.set_header("content-type", "application/json")
        self.finish(orjson.dumps(value))

    def write_error(self, status_code: int, **kwargs: object) -> None:
        """For what tornado refuses by itself, and for defects of ours."""
        del kwargs
        status = status_code if status_code in {404, 405} else 500
        self.refuse(Refused(status, f"{self.request.method} {self.request.path}: {self._reason}"))


class NotFoundHandler(JsonHandler):
    """Any other address."""

    def prepare(self) -> None:
        """Refuse every method."""
        self.refuse(Refused(404, f"Not found: {self.request.path}"))


class ControlHandler(JsonHandler):
    """`POST /_control/release` lets held streams go on: those of `{"path": …}`, without a path all."""

    def post(self) -> None:
        """Release; answers how many."""
        wanted = orjson.loads(self.request.body or b"{}").get("path")
        self.reply({"released": self.services.release(wanted)})


class MessagesHandler(JsonHandler):
    """`POST /v1/messages`."""

    def initialize(self, services: Services) -> None:
        """Nothing sent yet."""
        super().initialize(services)
        self._gone = asyncio.Event()
        self._hold: asyncio.Event | None = None
        self._entry: JsonObject = {}

    def on_connection_close(self) -> None:
        """The client left before the answer was whole."""
        self._gone.set()
        if self._hold is not None:
            self._hold.set()

    async def post(self) -> None:
        """Judge, log, answer."""
        request: JsonObject | None = None
        try:
            caller = self._caller()
            request = self.services.answers.accept(self.request.body)
            attempt = self.services.answers.count(caller)
            self._entry["attempt"] = attempt
            self.services.keep_body(caller, attempt, self.request.body)
            await self.services.answers.in_order(caller, attempt)
            playback = self.services.answers.answer(caller, attempt, request)
        except Refused as refused:
            self._note("request", request, status=refused.status, reason=refused.message)
            self.refuse(refused)
            return
        self._note("request", request, status=200, reason="")
        if request.get("stream"):
            await self._stream(playback)
        else:
            await self._answer_whole(playback)

    def _caller(self) -> Caller:
        try:
            caller = Caller.of(self.request.headers)
        except ValueError as error:
            raise Refused(400, f"X-Celeriac-Call: {error}") from error
        self._entry = {**caller.fields(), "attempt": 0}
        if not (self.request.headers.get("x-api-key") or self.request.headers.get("authorization")):
            raise Refused(401, "x-api-key header is required")
        return caller

    def _note(self, event: str, request: JsonObject | None = None, **fields: str | int | bool) -> None:
        sha: JsonObject = {"messages_sha": messages_sha(request)} if event == "request" else {}
        self.services.journal.write({"event": event, **self._entry, **fields, **sha})

    async def _stream(self, playback: Playback) -> None:
        self.set_header("content-type", "text/event-stream; charset=utf-8")
        self.set_header("cache-control", "no-cache")
        try:
            await self._send_all(playback)
            how = await self._end(playback)
        except StreamClosedError:
            how = "client_left"
        left = self._gone.is_set() and how not in {"complete", "reset"}
        self._note("end", status=200, how="client_left" if left else how, client_left=left)

    async def _send_all(self, playback: Playback) -> None:
        hold = playback.hold
        for number, event in enumerate(playback.events):
            if number:
                await self._pause(playback.pace_seconds)
            await self._send(event)
            if number == 0:
                await self._send(_PING)
            if event.label == hold:
                hold = None
                await self._hold_open(event.label, "hold", self.services.ping_seconds)

    async def _end(self, playback: Playback) -> str:
        """What comes after the events: nothing more for a whole answer."""
        fault = playback.fault
        if fault is None:
            self.finish()
            return "complete"
        if fault.kind == "stall":
            await self._hold_open(playback.events[-1].label, "stall", None)
        if self._gone.is_set():
            raise StreamClosedError
        if fault.kind == "reset":
            await self._reset()
        else:
            if fault.kind == "error":
                await self._send(_error_event(fault))
            self.finish()
        return fault.kind

    async def _answer_whole(self, playback: Playback) -> None:
        """Without streaming: a fault leaves no answer at all."""
        fault = playback.fault
        if fault is None:
            self.reply(playback.answer.message())
        elif fault.kind == "error":
            self.refuse(Refused(500, "ordered by the script"))
        else:
            if fault.kind == "stall":
                await self._hold_open("request", "stall", None)
            await self._reset()
        self._note("end", status=200, how="complete" if fault is None else fault.kind, client_left=self._gone.is_set())

    async def _send(self, event: SseEvent) -> None:
        if self._gone.is_set():
            raise StreamClosedError
        self.write(event.wire())
        await self.flush()

    async def _pause(self, seconds: float) -> None:
        """Wait, with pings while it lasts; over at once when the client leaves."""
        while seconds > self.services.ping_seconds:
            await _set_within(self._gone, self.services.ping_seconds)
            await self._send(_PING)
            seconds -= self.services.ping_seconds
        await _set_within(self._gone, seconds)

    async def _hold_open(self, after: str, why: str, ping_seconds: float | None) -> None:
        """Send nothing but pings until released or the client has left."""
        self._hold = hold = asyncio.Event()
        self.services.holds[hold] = str(self._entry["path"])
        self._note("holding", status=200, after=after, why=why)
        try:
            while not (self._gone.is_set() or await _set_within(hold, ping_seconds)):
                await self._send(_PING)
        finally:
            del self.services.holds[hold]

    async def _reset(self) -> None:
        await asyncio.sleep(RESET_DELAY_SECONDS)
        if self._gone.is_set():
            return
        stream = self.detach()
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        stream.close()


def _error_event(fault: Fault) -> SseEvent:
    error: JsonObject = {"type": fault.error_type, "message": "ordered by the script"}
    return SseEvent("error", {"type": "error", "error": error})


async def _set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event, `seconds` at most; whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()
