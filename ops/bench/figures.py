"""What a benchmark found: one JSON line for programs, one row for people, and the limit it is held against."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from celeriac.common.contract.json import JsonObject

NAMES = (
    "dispatch_latency",
    "notify_latency",
    "agent_throughput",
    "shell_throughput",
    "turn_cpu_50",
    "turn_cpu_100",
    "turn_cpu_400",
    "redis_calls_per_turn",
)
"""What `make bench` must measure, beside the crowd (issue A2)."""
VALUES_SHOWN = 10
"""So many samples stand in the line as they are; of more, only median and p95."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The samples of one benchmark, ours and the baseline's, in one unit."""

    name: str
    unit: str
    ours: Sequence[float]
    baseline: Sequence[float]
    limit: float | None = None
    """Of the median; None: it is only printed."""

    @property
    def mine(self) -> float:
        """Our median."""
        return statistics.median(self.ours)

    @property
    def raw(self) -> float:
        """The baseline's median."""
        return statistics.median(self.baseline)

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.limit is None or self.mine <= self.limit

    def line(self) -> str:
        """The JSON line."""
        whole: JsonObject = {
            "bench": self.name,
            "ours": _short(self.mine),
            "baseline": _short(self.raw),
            "ratio": _short(self.mine / self.raw),
            "unit": self.unit,
            "n": len(self.ours),
            "samples": {"ours": _summary(self.ours), "baseline": _summary(self.baseline)},
        }
        return orjson.dumps(whole).decode()

    def row(self) -> str:
        """The line of the table."""
        limit = "" if self.limit is None else f"≤ {_short(self.limit):g} {'ok' if self.kept else 'MISSED'}"
        figures = (self.mine, p95(self.ours), self.raw, p95(self.baseline), self.mine / self.raw)
        cells = "".join(f"{_short(figure):>10g}" for figure in figures)
        return f"{self.name:21}{cells}  {len(self.ours):>4}  {limit:16} {self.unit}"


HEADING = f"{'':21}{'ours':>10}{'p95':>10}{'baseline':>10}{'p95':>10}{'ratio':>10}  {'n':>4}  {'limit':16} unit"


def p95(samples: Sequence[float]) -> float:
    """The 95th percentile; of a single sample, the sample."""
    return percentile(samples, 0.95)


def percentile(samples: Sequence[float], part: float) -> float:
    """The smallest sample that is not below `part` (0 to 1) of all."""
    ranked = sorted(samples)
    return ranked[min(int(part * len(ranked)), len(ranked) - 1)]


def _summary(samples: Sequence[float]) -> JsonObject:
    told: JsonObject = {"median": _short(statistics.median(samples)), "p95": _short(p95(samples))}
    return {**told, "values": [_short(sample) for sample in samples]} if len(samples) <= VALUES_SHOWN else told


def _short(figure: float) -> float:
    """Four digits: more would only be noise."""
    return float(f"{figure:.4g}")
