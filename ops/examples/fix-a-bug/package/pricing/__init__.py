"""Prices of an order, in whole cents."""

from pricing.order import Line, Order
from pricing.shipping import shipping_cents

__all__ = ["Line", "Order", "shipping_cents"]
