"""For all tests: a private real server, the in-memory twin, and no skips in CI, whose machine can run everything."""

import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis

from celeriac.common.contract import ids
from celeriac.common.contract.text import clean_text
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.servers import PrivateServer, in_memory
from celeriac.common.testing.substrate_kit import Kit

IN_CI = os.environ.get("CELERIAC_CI") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where nothing may be skipped; keep lone surrogates, which some tests log on purpose,
    out of what xdist sends from process to process."""
    report = yield
    report.sections = [(name, clean_text(text)) for name, text in report.sections]
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each kill of the kill tests: kind, pid, moment, recovery."""
    passed = terminalreporter.getreports("passed")
    kills = [str(value) for report in passed for name, value in report.user_properties if name == "kill"]
    if kills:
        terminalreporter.section("kills")
        for line in sorted(kills):
            terminalreporter.write_line(line)


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


@pytest.fixture
def substrate(twin_kit: Kit) -> Substrate:
    """The in-memory twin."""
    return twin_kit.substrate


@pytest.fixture
def bash() -> Probe:
    """A state-changing tool that a test controls."""
    return Probe("Bash", changes=True)


@pytest.fixture
def read() -> Probe:
    """A read-only one."""
    return Probe("Read", changes=False)


@pytest.fixture
def stage(substrate: Substrate, bash: Probe, read: Probe) -> Stage:
    """For the loop: a real lease on the in-memory server, and these tools."""
    return Stage(substrate, [bash, read])


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A server with a lease of 2 s; the test starts what it needs. At the end it must have been three processes."""
    async with cluster(tmp_path) as started:
        yield started
        started.refuse_shams()
