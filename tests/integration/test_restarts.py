"""The server is killed and comes back while everything is under way (issue A2: Redis comes and goes)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from celeriac.ops.chaos import attacks, restarts


@pytest.mark.cluster
async def test_ten_restarts_under_a_fan_out_of_sixty_lose_and_double_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    outcome = await restarts.play(tmp_path)
    for restart in outcome.restarts:
        record_property("restart", str(restart))
    assert outcome.faults == ()
    assert len(outcome.restarts) == 10 and all(restart.running for restart in outcome.restarts)
    assert outcome.messages == 10


@pytest.mark.cluster
@pytest.mark.parametrize("attack", attacks.ATTACKS, ids=lambda attack: attack.__name__)
async def test_worse_weather_loses_and_doubles_nothing(attack: attacks.Attack, tmp_path: Path) -> None:
    assert await attacks.play(tmp_path, attack) == []
