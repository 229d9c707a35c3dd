"""Processes that are told to end hand over what they run: queued, not failed, and not counted (issue A2)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from celeriac.ops.chaos import handover

EXIT_SECONDS = 10.0
"""A coordinator has handed over by then (issue A2); so has a worker whose commands end in time."""


@pytest.mark.cluster
async def test_a_coordinator_and_a_worker_hand_over_while_agents_stream(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    outcome = await handover.play(tmp_path)
    for told in outcome.hand_overs:
        record_property("hand-over", str(told))
        assert told.runs and told.exit_code == 0
        assert told.moved_s < handover.LEASE_SECONDS, "that was no hand-over: the leases ran out"
        assert told.exit_s < EXIT_SECONDS + handover.LOAD.shell_seconds
    assert (outcome.faults, outcome.attempts) == ((), 0)
