"""What the server is asked, as the server itself tells it (MONITOR): which script, about which task, and when."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Monitor

from celeriac.common.contract.ids import TaskId
from celeriac.common.substrate.scripts import packaged

WAIT_SECONDS = 10.0
INSIDE = "lua"
"""Who sends the commands of a script that runs: no call over the network."""


class Command(NamedTuple):
    """One command of a client."""

    at: float
    """The server's clock: seconds since the epoch."""
    client: str
    """Address of its connection."""
    name: str
    """The script's name for EVALSHA, else the command's."""
    text: str
    """All of it."""


@dataclass(slots=True)
class Seen:
    """All commands since it was opened."""

    commands: list[Command] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def about(self, task_id: TaskId) -> list[Command]:
        """Those that name a key of this task."""
        return [command for command in self.commands if f":{task_id}" in command.text]

    async def answered(self, name: str, task_id: TaskId) -> float:
        """Wait until whoever sent this command about the task goes on, so that it has the answer; when the server saw
        that."""
        async with asyncio.timeout(WAIT_SECONDS):
            while (at := self._answered(name, task_id)) is None:
                self._more.clear()
                await self._more.wait()
        self.commands.clear()
        return at

    def _answered(self, name: str, task_id: TaskId) -> float | None:
        asked = next((each for each in self.about(task_id) if each.name == name), None)
        if asked is None:
            return None
        later = self.commands[self.commands.index(asked) + 1 :]
        return next((each.at for each in later if each.client == asked.client), None)

    async def listen(self, monitor: Monitor) -> None:
        """Take down what comes, until cancelled."""
        scripts = {packaged()[name].sha: name for name in packaged().names()}
        while True:
            told = await monitor.next_command()
            if told["client_type"] == INSIDE:
                continue
            name, _, rest = told["command"].partition(" ")
            first = rest.partition(" ")[0]
            client = f"{told['client_address']}:{told['client_port']}"
            self.commands.append(Command(told["time"], client, scripts.get(first, name.upper()), rest))
            self._more.set()


@asynccontextmanager
async def seen(redis: Redis) -> AsyncIterator[Seen]:
    """Listen, on a connection of its own."""
    async with redis.monitor() as monitor:
        listener = Seen()
        listening = asyncio.create_task(listener.listen(monitor), name="monitor")
        try:
            yield listener
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
