"""alive, silent, parked, waiting_human, lost: one table."""

from dataclasses import replace

import pytest

from celeriac.common.contract.presence import Presence, Signs, presence_of

NOW, SILENT = 1_000_000, 60_000
OWNED = Signs(
    terminal=False,
    owned=True,
    lease_until=NOW + 1,
    park="",
    park_at=0,
    asked=False,
    open_children=0,
    progress_at=NOW - SILENT + 1,
)
FREE = replace(OWNED, owned=False, lease_until=0)


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (OWNED, Presence.ALIVE),
        (replace(OWNED, progress_at=NOW - SILENT), Presence.SILENT),
        (replace(OWNED, progress_at=NOW - SILENT, open_children=1), Presence.ALIVE),
        (replace(OWNED, lease_until=NOW), Presence.LOST),
        (replace(OWNED, lease_until=NOW, progress_at=0), Presence.LOST),
        (replace(OWNED, terminal=True), None),
        (FREE, None),
        (replace(FREE, park="inbox"), Presence.PARKED),
        (replace(FREE, park="inbox", asked=True), Presence.WAITING_HUMAN),
        (replace(FREE, park="answer:q1", park_at=NOW + 1), Presence.WAITING_HUMAN),
        (replace(FREE, park="time", park_at=NOW + 1), Presence.PARKED),
        (replace(FREE, park="time", park_at=NOW), None),
        (replace(FREE, park="inbox", terminal=True), None),
    ],
)
def test_presence_follows_from_the_record_and_the_servers_time(signs: Signs, expected: Presence | None) -> None:
    assert presence_of(signs, now_ms=NOW, silent_ms=SILENT) is expected
