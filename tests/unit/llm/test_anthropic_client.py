"""The client's connections, as a server sees them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm.anthropic_client import AnthropicClient
from celeriac.common.llm.client import ApiMessage, BrokenStream, CallKey, Finished, Request
from celeriac.common.llm.sse_script import Answer, expand

USAGE: JsonObject = {"input_tokens": 1, "output_tokens": 1}
ANSWER = Answer("msg_1", "m", ({"type": "text", "text": "Hello."},), "end_turn", USAGE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Server:
    """Answers every request with ANSWER and counts its connections; `ends`: the body's end follows the answer."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self.connections = 0
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        body = b"".join(event.wire() for event in expand(ANSWER))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                assert length is not None
                await reader.readexactly(int(length[1]))
                chunk = b"%x\r\n%s\r\n" % (len(body), body)
                writer.write(HEAD + chunk + (LAST_CHUNK if self.ends else b""))
                await writer.drain()
        except asyncio.IncompleteReadError:
            self.left.set()
        finally:
            writer.close()


REQUEST = Request(
    CallKey(TaskId("s-0123456789abc"), "s", 1, 1),
    "m",
    10,
    (),
    b"[]",
    (ApiMessage.of("user", ({"type": "text", "text": "go"},)),),
)


@asynccontextmanager
async def client_of(server: Server, *, answer_limit: float = 20.0) -> AsyncIterator[AnthropicClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = AnthropicClient(base_url=f"http://127.0.0.1:{port}", api_key="k", answer_limit=answer_limit)
    try:
        yield client
    finally:
        await client.aclose()
        listening.close()


async def ask_thrice(client: AnthropicClient) -> None:
    for _ in range(3):
        events = [event async for event in client.stream(REQUEST, AbortNode())]
        assert isinstance(events[-1], Finished)


async def test_answers_that_end_leave_their_connection_for_the_next_call() -> None:
    server = Server(ends=True)
    async with asyncio.timeout(20), client_of(server) as client:
        await ask_thrice(client)
        assert server.connections == 1


async def test_a_server_that_does_not_end_its_answer_holds_nobody_up() -> None:
    server = Server(ends=False)
    async with asyncio.timeout(20), client_of(server) as client:
        await ask_thrice(client)
        await server.left.wait()  # it was hung up on
        assert server.connections == 3


async def test_an_answer_that_takes_longer_than_its_limit_is_a_broken_stream() -> None:
    async with asyncio.timeout(20), client_of(Server(ends=True), answer_limit=0.0) as client:
        with pytest.raises(BrokenStream, match="longer than its limit"):
            [event async for event in client.stream(REQUEST, AbortNode())]
