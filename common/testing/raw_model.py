"""A model's server that sends exactly the bytes it is told to, and keeps what it was asked: for answers that neither a
script nor the stand-in would ever give."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import orjson

from celeriac.common.contract.json import JsonObject

End = Literal["whole", "cut", "reset", "stall"]
"""How a body ends: as it should, by a closed socket, by a reset, or not at all."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One answer."""

    body: bytes
    status: int = 200
    content_type: str = "text/event-stream"
    end: End = "whole"
    headers: str = ""
    """More header lines, each with its line end."""


def sse(*events: tuple[str, JsonObject]) -> bytes:
    """The bytes of a stream of events."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps({"type": name, **data})) for name, data in events
    )


def message_start() -> tuple[str, JsonObject]:
    """The first event."""
    usage: JsonObject = {"input_tokens": 3, "output_tokens": 1}
    message: JsonObject = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m"}
    return "message_start", {"message": {**message, "stop_reason": None, "usage": usage}}


def block(index: int, start: JsonObject, *deltas: JsonObject) -> list[tuple[str, JsonObject]]:
    """All events of one block."""
    events: list[tuple[str, JsonObject]] = [("content_block_start", {"index": index, "content_block": start})]
    events += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
    return [*events, ("content_block_stop", {"index": index})]


def text(index: int, words: str) -> list[tuple[str, JsonObject]]:
    """All events of a text block."""
    return block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": words})


def tool(index: int, call_id: str, name: str, **given: str) -> list[tuple[str, JsonObject]]:
    """All events of a tool_use block."""
    delta: JsonObject = {"type": "input_json_delta", "partial_json": orjson.dumps(given).decode()}
    return block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, delta)


def ending(stop_reason: str | None = "end_turn") -> list[tuple[str, JsonObject]]:
    """The last two events."""
    delta: JsonObject = {"stop_reason": stop_reason, "stop_sequence": None}
    return [("message_delta", {"delta": delta, "usage": {"output_tokens": 7}}), ("message_stop", {})]


def says(words: str) -> Raw:
    """A whole answer that is one text."""
    return Raw(sse(message_start(), *text(0, words), *ending()))


def refusal(status: int, kind: str, message: str = "as ordered") -> Raw:
    """An error answer as the API gives it."""
    error: JsonObject = {"type": "error", "error": {"type": kind, "message": message}}
    return Raw(orjson.dumps(error), status=status, content_type="application/json")


@dataclass(slots=True)
class RawModel:
    """Gives its answers in order, the last one again and again."""

    answers: Sequence[Raw]
    url: str = ""
    requests: list[JsonObject] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].partition("\r\n")[0])
            self.requests.append(orjson.loads(await reader.readexactly(length)))
            await self._answer(self.answers[min(len(self.requests), len(self.answers)) - 1], writer, reader)
        except (ConnectionError, asyncio.IncompleteReadError):  # the client has gone
            pass
        finally:
            writer.close()

    async def _answer(self, raw: Raw, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        head = f"HTTP/1.1 {raw.status} X\r\ncontent-type: {raw.content_type}\r\nconnection: close\r\n{raw.headers}"
        writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(raw.body), raw.body) if raw.body else b"")
        if raw.end == "whole":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        if raw.end == "stall":
            await reader.read()  # until the client gives up
        if raw.end == "reset":
            await asyncio.sleep(0.05)  # a reset would overtake bytes that were not read yet
            peer: socket.socket = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


@asynccontextmanager
async def raw_model(*answers: Raw) -> AsyncIterator[RawModel]:
    """A server with these answers, for as long as the block lasts."""
    model = RawModel(answers)
    server = await asyncio.start_server(model.handle, "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield model
    finally:
        server.close()
