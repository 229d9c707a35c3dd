"""Real processes die at chosen moments. Nothing is lost, nothing doubled (issue A1, kill tests)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from celeriac.ops.chaos.scenarios import SCENARIOS, Scenario, play

LEASE_SECONDS = 2.0
RECOVERY_LIMIT_SECONDS = 15.0
"""Far above lease + scan, since CI machines are noisy; `make kill` holds the real limit with the default lease."""


@pytest.mark.cluster
@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_a_kill_loses_and_doubles_nothing(
    scenario: Scenario, time: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kill = await play(scenario, tmp_path / "run", lease_seconds=LEASE_SECONDS)
    record_property("kill", f"{kill.kind} {kill.pid} {kill.moment} recovered in {kill.recovery_s:.2f} s")
    assert kill.recovery_s < RECOVERY_LIMIT_SECONDS
