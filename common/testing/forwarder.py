"""An address that leads to another server after a failover, as a virtual address or a proxy does: connections that are
open stay where they are, new ones go to the new place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 65_536


@dataclass(slots=True)
class Forwarder:
    """Passes bytes on to `port` of this machine."""

    port: int
    own_port: int = 0
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"redis://127.0.0.1:{self.own_port}/0"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.append(writer)
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self.port)
            self._writers.append(back)
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        writer.close()

    async def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def forwarder(port: int) -> AsyncIterator[Forwarder]:
    """Forwards until the block is left."""
    made = Forwarder(port)
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.own_port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.cut()
