"""Routes: which lorry a parcel leaves on."""


def zone(postcode: str) -> str:
    """The first two digits of a postcode of five."""
    return str(int(postcode))[:2]
