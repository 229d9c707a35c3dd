"""A stage for the loop: a real lease on the in-memory server, and tools that a test controls."""

from collections.abc import AsyncIterator

import pytest

from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.servers import in_memory


@pytest.fixture
async def substrate() -> AsyncIterator[Substrate]:
    made = in_memory()
    yield made
    await made.aclose()


@pytest.fixture
def bash() -> Probe:
    return Probe("Bash", changes=True)


@pytest.fixture
def read() -> Probe:
    return Probe("Read", changes=False)


@pytest.fixture
def stage(substrate: Substrate, bash: Probe, read: Probe) -> Stage:
    return Stage(substrate, [bash, read])
