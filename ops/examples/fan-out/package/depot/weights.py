"""Weights: customers say kilograms, tariffs count whole grams."""

GRAMS_PER_KILOGRAM = 1_000


def grams(kilograms: float) -> int:
    """The weight to the nearest gram."""
    return int(kilograms * GRAMS_PER_KILOGRAM)
