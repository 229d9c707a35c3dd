"""Counts: how full the lorries will be."""

from collections import Counter
from collections.abc import Iterable


def by_zone(zones: Iterable[str]) -> dict[str, int]:
    """Parcels of each zone, the fullest zone first."""
    return dict(Counter(zones).most_common())
