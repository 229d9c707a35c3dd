"""A private real server, and substrates over it and over the in-memory twin."""

from collections.abc import AsyncIterator, Iterator

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.servers import PrivateServer, in_memory
from celeriac.common.testing.substrate_kit import Kit


@pytest.fixture(scope="session")
def private_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """One real server for all tests of this process; each test has a prefix of its own."""
    with PrivateServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
async def server_kit(private_server: PrivateServer) -> AsyncIterator[Kit]:
    """A substrate on the real server."""
    prefix = f"{ids.nonce()}:"
    substrate = Substrate.connect(private_server.url, prefix=prefix)
    client = Redis.from_url(private_server.url, protocol=2)
    yield Kit(substrate, client, Keys(prefix))
    await client.aclose()
    await substrate.aclose()


@pytest.fixture
async def twin_kit() -> AsyncIterator[Kit]:
    """A substrate on the in-memory twin."""
    server = FakeServer()
    substrate = in_memory(server=server)
    client = FakeAsyncRedis(server=server, protocol=2)
    yield Kit(substrate, client, Keys())
    await client.aclose()
    await substrate.aclose()


@pytest.fixture(params=["twin_kit", "server_kit"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """Every conformance test of the substrate runs on both."""
    found: Kit = request.getfixturevalue(request.param)
    return found
