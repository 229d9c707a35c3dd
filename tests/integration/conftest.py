"""Integration tests run on real processes: server, coordinator and worker, none of which is pytest's."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from celeriac.common.testing.cluster import Cluster, cluster


@pytest.fixture
async def system(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A server with a lease of 2 s; the test starts what it needs. At the end it must have been three processes."""
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(cluster(tmp_path))
        yield started
        refuse_shams(started)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A coordinator and a worker for all tests of a module, whose jobs bring their own replays."""
    async with cluster(tmp_path_factory.mktemp("shared")) as started:
        await started.coordinator()
        await started.worker()
        yield started
        refuse_shams(started)


def refuse_shams(started: Cluster) -> None:
    """Server, coordinator and worker must be processes of their own."""
    roles = [name for role in ("coordinator", "worker") for name in started.members if name.startswith(role)]
    pids = {started.server.pid, *(started.members[name].pid for name in roles)}
    assert len(pids) == 1 + len(roles), "two roles share a process"
    assert any(name.startswith("coordinator") for name in roles), "no coordinator process was started"
    assert any(name.startswith("worker") for name in roles), "no worker process was started"
    assert os.getpid() not in pids, "a role runs inside pytest"
