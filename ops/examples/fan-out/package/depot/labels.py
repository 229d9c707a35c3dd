"""Labels: what is printed for a parcel."""

DEPOT = "DEPOT 7"


def label(name: str, hints: list[str] = []) -> list[str]:
    """The lines of one label: the name, the hints for this parcel, the depot."""
    hints.append(DEPOT)
    return [name, *hints]
