"""What the stand-in decides about one request, before a byte of the answer is sent. Knows no sockets."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.llm.client import ReplayFailed
from celeriac.common.llm.ordering import in_order
from celeriac.common.llm.playback import Cast, Playback, Served, check_request, names_tasks, play
from celeriac.common.llm.script import CallId, Entry, Reply, Script, ScriptLine
from celeriac.ops.standin.validator import WINDOW_TOKENS, validate

BODY_LIMIT_BYTES = 32 * 1024 * 1024
"""Of a request (MODEL_API, Rules); more is refused by the edge with 413."""
ERROR_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_UNKNOWN_CALLER = Entry(path="s", run=1, turn=1, reply=Reply(content=({"type": "text", "text": "ok"},)))
"""The answer to requests without X-Celeriac-Call: some other client, which no script line can mean."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as told by the request's headers."""

    session: str
    call: CallId | None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "Caller":
        """Read X-Celeriac-Session and X-Celeriac-Call (`path;run;turn;attempt`). Raises ValueError."""
        session = headers.get("X-Celeriac-Session", "")
        raw = headers.get("X-Celeriac-Call")
        if raw is None:
            return cls(session, None)
        path, run, turn, _attempt = raw.split(";")
        return cls(session, CallId(path, int(run), int(turn)))

    def fields(self) -> JsonObject:
        """For the log."""
        path, run, turn = self.call or ("", 0, 0)
        return {"session": self.session, "path": path, "run": run, "turn": turn}


class Refused(CeleriacError):
    """The request gets an error status instead of an answer."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        """`retry_after` in seconds."""
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    def body(self) -> JsonObject:
        """As the real API says it."""
        return {"type": "error", "error": {"type": ERROR_TYPES[self.status], "message": self.message}}


class Answers:
    """The script, the attempts counted so far, and the signatures given out."""

    def __init__(self, script: Script, *, window: int = WINDOW_TOKENS) -> None:
        """`window` in tokens."""
        self.script = script
        self._window = window
        self._attempts: dict[str, dict[tuple[str, int, int], int]] = {}
        self._signatures: dict[str, str] = {}

    def accept(self, body: bytes) -> JsonObject:
        """The request as JSON. Raises Refused if the real API would refuse it."""
        if len(body) > BODY_LIMIT_BYTES:
            raise Refused(413, f"Request exceeds the maximum size of {BODY_LIMIT_BYTES} bytes")
        verdict = validate(body, window=self._window, signatures=self._signatures)
        if not verdict.valid:
            raise Refused(verdict.status, verdict.reason)
        request: JsonObject = orjson.loads(body)
        return request

    def count(self, caller: Caller) -> int:
        """Count one more attempt of the caller's call; 1 for the first, 0 for a caller without one."""
        if caller.call is None:
            return 0
        counts = self._attempts.setdefault(caller.session, {})
        counts[caller.call] = counts.get(caller.call, 0) + 1
        return counts[caller.call]

    async def in_order(self, caller: Caller, attempt: int) -> None:
        """Wait for the calls that this answer follows. Raises Refused if one never comes, or for a missing line."""
        if caller.call is None:
            return
        try:
            await in_order(self.script.line(caller.call, attempt), caller.call, lambda: self._served(caller))
        except ReplayFailed as error:
            raise Refused(500, str(error)) from error

    async def _served(self, caller: Caller) -> Served:
        return self._attempts[caller.session]

    def answer(self, caller: Caller, attempt: int, request: JsonObject) -> Playback:
        """What the script says. Raises Refused, for a missing line or a request that diverged too."""
        try:
            playback = self._play(caller, attempt, request)
        except ReplayFailed as error:
            raise Refused(500, str(error)) from error
        fault = playback.fault
        if fault is not None and fault.refused:
            raise Refused(int(fault.kind), "ordered by the script", fault.retry_after)
        for block in playback.answer.content:
            if block["type"] == "thinking":
                self.remember(str(block["signature"]), str(block["thinking"]))
        return playback

    def remember(self, signature: str, thinking: str) -> None:
        """Note what was signed: whoever sends it back changed is refused."""
        self._signatures[signature] = thinking

    def _play(self, caller: Caller, attempt: int, request: JsonObject) -> Playback:
        model = str(request["model"])
        if caller.call is None:
            assert _UNKNOWN_CALLER.reply is not None
            line = ScriptLine(0, _UNKNOWN_CALLER, _UNKNOWN_CALLER.reply)
            return play(line, CallId("s", 1, 1), attempt, model, None)
        line = self.script.line(caller.call, attempt)
        messages = request["messages"]
        assert isinstance(messages, list)
        check_request(line, caller.call, [message for message in messages if isinstance(message, dict)])
        return play(line, caller.call, attempt, model, self._cast(caller) if names_tasks(line) else None)

    def _cast(self, caller: Caller) -> Cast:
        if not caller.session:
            raise ReplayFailed("the script names tasks, but the request has no X-Celeriac-Session")
        return Cast(self.script, TaskId(caller.session), self._attempts[caller.session])

    def unused(self) -> list[str]:
        """The script's lines that answered nothing, over all sessions."""
        total: dict[tuple[str, int, int], int] = {}
        for counts in self._attempts.values():
            for call, count in counts.items():
                total[call] = total.get(call, 0) + count
        return self.script.unused(total)


def messages_sha(request: JsonObject | None) -> str | None:
    """sha256 of the messages as they came; None for a body that has none."""
    if request is None or "messages" not in request:
        return None
    return hashlib.sha256(orjson.dumps(request["messages"], option=orjson.OPT_SORT_KEYS)).hexdigest()
