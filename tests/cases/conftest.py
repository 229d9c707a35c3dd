"""Each file here is one fault that users of systems like this one have met (CASES.md): its example and its kind."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.hands import Hands
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.servers import in_memory
from celeriac.workers.shell.commands import Commands
from celeriac.workers.tools import worker_tools
from celeriac.workers.workspace import Workspace


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


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    root = tmp_path / "ws"
    root.mkdir()
    workspace = Workspace(root)
    yield Hands(worker_tools(Commands(None), {}), workspace)
    workspace.close()


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path) as started:
        yield started
        started.refuse_shams()
