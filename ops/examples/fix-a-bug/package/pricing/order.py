"""Orders: lines with a quantity and a unit price, and a discount for large quantities."""

from dataclasses import dataclass

DISCOUNT_FROM = 10
DISCOUNT_PERCENT = 5


@dataclass(frozen=True)
class Line:
    """One article of an order."""

    article: str
    quantity: int
    unit_cents: int

    def total_cents(self) -> int:
        """Price of the line after the quantity discount."""
        total = self.quantity * self.unit_cents
        if self.quantity > DISCOUNT_FROM:
            total -= total * DISCOUNT_PERCENT // 100
        return total


@dataclass(frozen=True)
class Order:
    """What a customer buys."""

    lines: tuple[Line, ...]

    def total_cents(self) -> int:
        """Sum of all lines."""
        return sum(line.total_cents() for line in self.lines)
