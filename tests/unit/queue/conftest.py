"""For tests of what is sent."""

import pytest

from celeriac.common.contract.task import Record
from celeriac.common.testing.substrate_kit import Kit


@pytest.fixture
async def record(twin_kit: Kit) -> Record:
    """An agent's record."""
    return await twin_kit.substrate.records.get(await twin_kit.agent(await twin_kit.owned_session()))
