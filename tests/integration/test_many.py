"""Hundreds of sessions and tasks on several coordinators and workers, some of which die (issue A2: Many)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from celeriac.ops.chaos import many

CI_FACTOR = 3
"""Machines that run many tests at once are slow; `make chaos` prints the figure."""

Record = Callable[[str, object], None]


@pytest.mark.cluster
async def test_a_crowd_survives_the_death_of_a_coordinator_and_a_worker(
    tmp_path: Path, record_property: Record
) -> None:
    outcome = await many.play(tmp_path)
    record_property("crowd", str(outcome))
    assert len(outcome.killed) == 2 and outcome.takeovers > 0, "nothing was taken over: the kills proved nothing"
    assert outcome.faults == ()


@pytest.mark.cluster
async def test_hundreds_of_sessions_at_once_are_all_claimed_soon(tmp_path: Path, record_property: Record) -> None:
    claims = await many.claims(tmp_path, sessions=300)
    record_property("claims", f"longest wait {claims.longest:.2f} s, median {claims.median:.2f} s")
    assert claims.longest < many.CLAIM_SECONDS * CI_FACTOR
    assert claims.most_at_once > 0


@pytest.mark.cluster
async def test_full_coordinators_take_no_more_and_the_next_as_soon_as_there_is_room(
    tmp_path: Path, record_property: Record
) -> None:
    claims = await many.claims(tmp_path, sessions=120, most=20)
    record_property("claims", f"longest wait with room {claims.with_room:.2f} s, at most {claims.most_at_once} at once")
    assert claims.most_at_once <= 2 * 20
    assert claims.with_room < many.CLAIM_SECONDS * CI_FACTOR
