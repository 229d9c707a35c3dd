"""For tests of what is sent: a record that is not stored anywhere else."""

from collections.abc import AsyncIterator

import pytest

from celeriac.common.contract.task import Record
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.servers import in_memory
from celeriac.common.testing.substrate_kit import Kit


@pytest.fixture
async def substrate() -> AsyncIterator[Substrate]:
    """The in-memory twin."""
    made = in_memory()
    yield made
    await made.aclose()


@pytest.fixture
async def record(substrate: Substrate) -> Record:
    """An agent's record."""
    kit = Kit(substrate, None, None)  # type: ignore[arg-type]  # nothing of it looks inside
    return await substrate.records.get(await kit.agent(await kit.owned_session()))
