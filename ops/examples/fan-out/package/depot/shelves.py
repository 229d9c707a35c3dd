"""Shelves: where a parcel waits, by its weight."""

from bisect import bisect_right

SHELVES = ("letters", "small", "large", "bulky")
LIMITS_GRAMS = (500, 2_000, 10_000)


def shelf(grams: int) -> str:
    """The lightest shelf that holds this weight; a limit itself still belongs to the lighter one."""
    return SHELVES[bisect_right(LIMITS_GRAMS, grams)]
