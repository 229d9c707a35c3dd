"""The benchmarks' form: what they are called, what their lines hold, and what their baselines are made of."""

import ast
from pathlib import Path

import orjson
import pytest

import celeriac.ops.bench as package
from celeriac.common.llm.script import CallId, parse_script
from celeriac.ops.bench import latencies, throughputs, turns
from celeriac.ops.bench.crowd import AGENTS, MEMORY_LIMIT_MIB
from celeriac.ops.bench.figures import NAMES, Figure, percentile
from celeriac.ops.bench.model import READ_TURNS, READS, script_text
from celeriac.ops.bench.run import FAMILIES
from celeriac.ops.bench.turns import LIMITS

LONGEST_BASELINE = 60
BASELINES = sorted((Path(package.__file__).parent / "baselines").glob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports a neighbour"
            names.add(node.module or "")
    return names


def test_there_is_a_baseline_for_the_queue_the_stream_and_the_loop() -> None:
    assert {path.stem for path in BASELINES} == {"__init__", "plain_celery", "raw_stream", "sdk_loop"}


@pytest.mark.parametrize("path", BASELINES, ids=lambda path: path.stem)
def test_a_baseline_is_short_and_imports_nothing_of_ours(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_BASELINE
    ours = {name for name in imported(path) if name.partition(".")[0] in {"celeriac", "common", "workers", "ops"}}
    assert not ours


def test_the_line_has_the_agreed_fields() -> None:
    line = orjson.loads(Figure("notify_latency", "ms", [3.0, 1.0, 2.0], [0.5, 0.5, 1.5]).line())
    assert line == {
        "bench": "notify_latency",
        "ours": 2.0,
        "baseline": 0.5,
        "ratio": 4.0,
        "unit": "ms",
        "n": 3,
        "samples": {
            "ours": {"median": 2.0, "p95": 3.0, "values": [3.0, 1.0, 2.0]},
            "baseline": {"median": 0.5, "p95": 1.5, "values": [0.5, 0.5, 1.5]},
        },
    }


def test_the_line_of_many_samples_stays_short() -> None:
    samples = [float(number) for number in range(1, 201)]
    line = orjson.loads(Figure("dispatch_latency", "ms", samples, samples).line())
    assert line["n"] == 200
    assert line["samples"]["ours"] == {"median": 100.5, "p95": 191.0}


def test_a_limit_is_kept_or_missed_by_the_median() -> None:
    kept, missed = Figure("x", "ms", [1.0, 1.0, 9.0], [1.0], 1.0), Figure("x", "ms", [1.0, 2.0, 3.0], [1.0], 1.0)
    assert (kept.kept, missed.kept) == (True, False)
    assert "MISSED" in missed.row()
    assert "MISSED" not in kept.row()


def test_a_percentile_is_one_of_the_samples() -> None:
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([float(number) for number in range(100)], 0.99) == 99.0


def test_every_agreed_name_is_measured_by_a_family() -> None:
    measured = set(FAMILIES) - {"turn_cpu"} | {f"turn_cpu_{turn}" for turn in LIMITS}
    assert measured == set(NAMES)


def test_there_are_as_many_samples_and_limits_as_agreed() -> None:
    assert latencies.SAMPLES >= 200
    assert min(throughputs.PAIRS, turns.PAIRS) >= 5
    assert (latencies.DISPATCH_MARGIN_MS, latencies.NOTIFY_FACTOR) == (12.0, 15.0)
    assert LIMITS == {50: None, 100: 0.65, 400: 0.25}
    assert (AGENTS, MEMORY_LIMIT_MIB) == (300, 500.0)


def test_the_script_reaches_the_last_turn_that_is_counted() -> None:
    script = parse_script(script_text(), "of the test")
    last = max(LIMITS) + turns.AROUND
    assert last == READ_TURNS
    assert "tool_use" in {block["type"] for block in script.line(CallId(READS, 1, last), 1).reply.content}
    assert "tool_use" not in {block["type"] for block in script.line(CallId(READS, 1, last + 1), 1).reply.content}
