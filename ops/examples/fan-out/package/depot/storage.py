"""Storage: parcels that nobody has fetched cost a fee for each day."""

from datetime import date


def days_stored(arrived: date, fetched: date) -> int:
    """Days to pay for: the first and the last one both count."""
    return (fetched - arrived).days
