"""`celeriac batch` as a user runs it."""

import json
from pathlib import Path

import pytest

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.command import CommandLine
from celeriac.common.testing.replies import dispatch, reply, say, script


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    work = tmp_path / "work"
    work.mkdir()
    return CommandLine(work, {"CELERIAC_HOME": str(tmp_path / "home")})


def at(line: CommandLine, system: Cluster) -> CommandLine:
    return CommandLine(line.cwd, {**line.environ, "CELERIAC_REDIS_URL": system.url})


def write(folder: Path, *jobs: JsonObject) -> str:
    file = folder / "jobs.jsonl"
    file.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    return str(file)


def replay(folder: Path, name: str, command: str) -> str:
    lines = (reply("s", 1, dispatch("sh", command=command)), reply("s", 2, say("Wait.")), reply("s", 3, say(name)))
    (folder / name).write_text(script(*lines))
    return name


async def test_a_batch_prints_its_ids_and_run_again_doubles_nothing(line: CommandLine, tmp_path: Path) -> None:
    async with cluster(tmp_path / "cluster") as system:
        here = at(line, system)
        file = write(line.cwd, {"prompt": "one"}, {"prompt": "two", "title": "Second"}, {"prompt": "one"})
        first = here.run("batch", file, "--key-prefix", "nightly")
        assert first.code == 0, first
        ids = first.out.split()
        assert len(set(ids)) == 3
        listed = json.loads(here.run("list", "--output-format", "json").out)
        assert {one["session_id"]: one["title"] for one in listed} == dict(
            zip(ids, ["one", "Second", "one"], strict=True)
        )
        assert here.run("batch", file, "--key-prefix", "nightly").out == first.out
        found = here.run("batch", "-", "--key-prefix", "nightly", "--output-format", "json", stdin='{"prompt":"one"}')
        assert json.loads(found.out) == {"line": 1, "session_id": ids[0]}
        assert len(json.loads(here.run("list", "--output-format", "json").out)) == 3
        assert len(here.run("batch", file).out.split()) == 3
        assert len(json.loads(here.run("list", "--output-format", "json").out)) == 6


async def test_a_batch_with_a_fault_submits_nothing(line: CommandLine, tmp_path: Path) -> None:
    async with cluster(tmp_path / "cluster") as system:
        here = at(line, system)
        assert here.run("submit", "other", "--idempotency-key", "k").code == 0
        bad = here.run("batch", write(line.cwd, {"prompt": "one"}, {"prompt": ""}, {"mode": 1}))
        assert (bad.code, bad.out) == (2, "")
        assert [text.strip().partition(":")[0] for text in bad.err.splitlines()[1:]] == ["line 2", "line 3"]
        used = here.run("batch", write(line.cwd, {"prompt": "one"}, {"prompt": "two", "idempotency_key": "k"}))
        assert (used.code, used.out) == (2, "")
        assert "line 2: the idempotency key was used for another request" in used.err
        assert here.run("batch", str(tmp_path / "none")).code == 2
        assert len(json.loads(here.run("list", "--output-format", "json").out)) == 1


@pytest.mark.cluster
async def test_a_batch_that_waits_prints_results_and_ends_like_the_worst(line: CommandLine, tmp_path: Path) -> None:
    async with cluster(tmp_path / "cluster") as system:
        await system.coordinator()
        await system.worker()
        system.refuse_shams()
        rules: list[JsonValue] = ["Bash(echo x >> effect)"]
        jobs: list[JsonObject] = [
            {"replay": replay(line.cwd, name, "echo x >> effect"), "allowed_tools": rules} for name in ("a", "b", "c")
        ]
        good = at(line, system).run("batch", write(line.cwd, *jobs), "--wait", "--parallel", "2", "--key-prefix", "p")
        assert good.code == 0, good
        results = [json.loads(text) for text in good.out.splitlines()]
        assert {one["line"]: one["result"] for one in results} == {1: "a", 2: "b", 3: "c"}
        assert {one["type"] for one in results} == {"result"}
        assert "3 jobs ended, 3 with success" in good.err
        twice = (reply("s", turn, dispatch("sh", command="echo x >> effect")) for turn in (1, 2))
        (line.cwd / "long").write_text(script(*twice))
        (line.cwd / "none").write_text(script())
        cut_short: JsonObject = {"prompt": "x", "replay": "long", "max_turns": 1}
        failing: JsonObject = {"prompt": "x", "replay": "none"}
        for worse, code in ((cut_short, 3), (failing, 1)):
            jobs.append(worse)
            cut = at(line, system).run("batch", write(line.cwd, *jobs), "--wait", "--key-prefix", "p")
            assert cut.code == code, cut
            assert f"{len(jobs)} jobs ended, 3 with success" in cut.err
        assert (line.cwd / "effect").read_text() == "x\n" * 3, "the three were found again, not run again"
