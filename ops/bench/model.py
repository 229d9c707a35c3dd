"""The model of the benchmarks: the real stand-in, in this process, which notes when each turn of whom was asked."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.llm.script import parse_script
from celeriac.common.testing.replies import reply, say, script, use
from celeriac.ops.standin.exchange import Answers, Caller
from celeriac.ops.standin.server import Standin

READS, DONE, TODO, WRITES, PACED = "s/1.0", "s/2.0", "s/3.0", "s/4.0", "s/5.0"
"""Paths of the script: a Read each turn; an answer at once; one TodoWrite, then the answer; a Write each turn; an
answer that takes its time."""
PACE_MS = 250.0
"""Between two events of PACED: a stream of four pieces a second."""
PACED_BLOCKS = 12
"""Texts of eight events each: the stream takes 24 s."""
READ_TURNS = 424
"""The last turn that `turn_cpu_400` counts."""
WRITE_TURNS = 40
JUDGED_BYTES = 100_000
"""Longer requests are not judged: that would take longer than all else, and what they grew from was judged. They are
over the model's window too, and there is no compaction yet."""
NOTES = "notes.txt"
"""The file that is read."""
THINKING = (
    "The next part of the notes should tell whether the order of these steps matters. I read it again, compare it with "
    "what I have seen so far, and then decide what is to be done with the entries that are still open in the list."
)
FINAL = "Everything is done; there is nothing left to look at."


class Asked(NamedTuple):
    """One request."""

    at: float
    """Seconds since the epoch."""
    cpu_seconds: float
    """What the watched process had used until then."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a process with all its threads, user and system, to the nanosecond (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


class Quick(Answers):
    """Answers long requests as they come."""

    def accept(self, body: bytes) -> JsonObject:
        """The request. Raises Refused for a short one that the real API would refuse."""
        if len(body) <= JUDGED_BYTES:
            return super().accept(body)
        request: JsonObject = orjson.loads(body)
        return request


class Model(Standin):
    """Notes each request."""

    def __init__(self) -> None:
        """Answers from `script_text`."""
        script = parse_script(script_text(), "of the benchmarks")
        super().__init__(script)
        self.answers = Quick(script)
        self.watched: int | None = None
        """The process whose CPU time is noted at each request."""
        self.asked: dict[int, Asked] = {}
        """By turn, since `watch`."""
        self.answered = 0
        """Requests so far."""

    def watch(self, pid: int) -> None:
        """Begin anew, with this process."""
        self.watched, self.asked = pid, {}

    def keep_body(self, caller: Caller, attempt: int, body: bytes) -> None:
        """Called for each request that is answered."""
        self.answered += 1
        if self.watched is not None and caller.call is not None:
            self.asked[caller.call.turn] = Asked(time.time(), cpu_seconds(self.watched))


def script_text() -> str:
    """All answers."""
    todo: JsonValue = [{"content": "Look", "status": "completed"}]
    return script(
        *_turns(READS, READ_TURNS, lambda _: [say(THINKING), use("Read", file_path=NOTES)]),
        reply(DONE, 1, say(FINAL)),
        reply(TODO, 1, say(THINKING), use("TodoWrite", todos=todo)),
        reply(TODO, 2, say(FINAL)),
        reply(PACED, 1, *([say(THINKING)] * PACED_BLOCKS), pace_ms=PACE_MS),
        *_turns(WRITES, WRITE_TURNS, lambda turn: [use("Write", file_path=f"{turn}.txt", content=THINKING)]),
    )


def _turns(path: str, count: int, blocks: Callable[[int], list[JsonObject]]) -> Iterator[JsonObject]:
    """So many answers with a call each, then the last one."""
    yield from (reply(path, turn, *blocks(turn)) for turn in range(1, count + 1))
    yield reply(path, count + 1, say(FINAL))
