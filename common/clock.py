"""Clocks. Server time comes from Redis; this is the local clock that a lease is judged by."""

import time


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME: monotonic, and it goes on while the machine sleeps (PROTOCOL 4, Local clock)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
