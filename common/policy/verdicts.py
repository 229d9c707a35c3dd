"""What looking at one simple command can find."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason to refuse a line, or to doubt it."""

    why: str
    never: bool


def denied(why: str) -> Finding:
    """It is never run."""
    return Finding(why, never=True)


def doubted(why: str) -> Finding:
    """Its words do not tell."""
    return Finding(why, never=False)
