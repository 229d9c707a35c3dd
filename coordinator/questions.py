"""What the command line does when a session asks its user something (SPEC 3, End)."""

import asyncio
import sys
from dataclasses import dataclass, field

from celeriac.common.contract.ids import TaskId
from celeriac.coordinator.client import Client
from celeriac.coordinator.follow import Streams
from celeriac.coordinator.jobs import QUESTION
from celeriac.coordinator.words import harmless


@dataclass(slots=True)
class Questions:
    """Asks the person at the terminal; without one, the question stays open (`follow`) or ends the job (`run`)."""

    client: Client
    session: TaskId
    streams: Streams
    ends_job: bool
    """Whether a question that nobody answers ends the job: nobody else can reach the server of a `run`."""
    asked: list[str] = field(default_factory=list)

    async def __call__(self, question: str) -> bool:
        """Deal with one question; False to leave it."""
        self.asked.append(question)
        self.streams.say(f"question: {harmless(question)}")
        if sys.stdin.isatty() and self.streams.terminal:
            return await self._answer_by_hand()
        if self.ends_job:
            await self.client.stop(self.session, QUESTION, kind="limit")
            return True
        self.streams.say(f'celeriac: the job waits for an answer: celeriac send {self.session} "…"')
        return False

    async def _answer_by_hand(self) -> bool:
        while not (text := (await _read_line("answer> ", self.streams)).strip()):
            self.streams.say("(an empty answer is not sent)")
        await self.client.send(self.session, text)
        return True


async def _read_line(prompt: str, streams: Streams) -> str:
    """A line from the terminal without a thread, so that Ctrl-C and the end of the job are not held up."""
    streams.err.write(prompt)
    streams.err.flush()
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the terminal was closed before the question was answered")
    return line
