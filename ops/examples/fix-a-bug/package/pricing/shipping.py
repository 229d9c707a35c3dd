"""Shipping: free from 50.00 on, otherwise a flat rate."""

FREE_FROM_CENTS = 5_000
FLAT_CENTS = 490


def shipping_cents(order_cents: int) -> int:
    """Cost of sending an order of this value."""
    return 0 if order_cents >= FREE_FROM_CENTS else FLAT_CENTS
