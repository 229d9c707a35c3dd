"""Batches: what one trolley carries."""

from collections.abc import Sequence


def batches(parcels: Sequence[str], size: int) -> list[Sequence[str]]:
    """All parcels in groups of `size`; the last group may be smaller."""
    return [parcels[start : start + size] for start in range(0, len(parcels) - size + 1, size)]
