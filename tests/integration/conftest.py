"""Integration tests run on real processes: server, coordinator and worker, none of which is pytest's."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from celeriac.common.testing.cluster import Cluster, cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A coordinator and a worker for all tests of a module, whose jobs bring their own replays."""
    async with cluster(tmp_path_factory.mktemp("shared")) as started:
        await started.coordinator()
        await started.worker()
        started.refuse_shams()
        yield started
        started.refuse_shams()
