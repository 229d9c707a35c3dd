"""`celeriac doctor` through the console script: what it says of a good and of a bad place."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.command import CommandLine, Said

KEY = "sk-ant-0123456789abcdef-secret"


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    work = tmp_path / "work"
    work.mkdir()
    return CommandLine(work, {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CELERIAC_FLOWER_PORT": "0"})


def statuses(said: Said) -> dict[str, str]:
    """Name → status; of several with one name the worst, which is the last in the alphabet but for ok."""
    found: dict[str, str] = {}
    for check in json.loads(said.out)["checks"]:
        found[check["name"]] = check["status"] if found.get(check["name"], "ok") == "ok" else found[check["name"]]
    return found


def test_without_a_server_nothing_fails_and_no_key_is_shown(line: CommandLine) -> None:
    said = line.run("doctor", ANTHROPIC_API_KEY=KEY)
    assert (said.code, said.err) == (0, ""), said
    lines = said.out.splitlines()
    assert all(one.split()[0] in {"ok", "warn"} for one in lines)
    assert [one for one in lines if one.startswith("warn  server ")], said.out
    assert KEY not in said.out and "the key is set" in said.out
    assert "\x1b" not in said.out
    assert "celeriac up" in said.out


def test_a_named_server_that_is_away_has_an_exit_code_of_its_own(line: CommandLine) -> None:
    said = line.run("doctor", "--redis-url", "redis://me:hunter2@127.0.0.1:1/0", "--output-format", "json")
    assert (said.code, json.loads(said.out)["exit_code"]) == (4, 4)
    assert statuses(said)["server"] == "fail"
    assert "hunter2" not in said.out
    assert line.run("doctor", "--redis-url", "http://127.0.0.1:1/0").code == 1


def test_what_is_wrong_here_is_found_with_a_remedy(line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "flower.py").touch()
    environ = {"CELERIAC_HOME": "/proc/nothing", "PYTHONPATH": str(tmp_path / "strange")}
    said = line.run("doctor", "--output-format", "json", **environ)
    assert said.code == 1
    found = statuses(said)
    assert (found["home"], found["shadowing"], found["flower"]) == ("fail", "fail", "fail")
    assert all(check["remedy"] for check in json.loads(said.out)["checks"] if check["status"] != "ok")


def test_bad_settings_are_a_finding(line: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / ".celeriac" / "settings.json"
    file.parent.mkdir()
    file.write_text('{"llm": {"modle": "x"}}')
    said = line.run("doctor")
    assert said.code == 1
    assert [one for one in said.out.splitlines() if one.startswith("fail  settings") and "llm.modle" in one]


def test_folders_of_a_stranger_do_no_harm(line: CommandLine) -> None:
    for name in ("common", "celeriac", "redis", "click"):
        (line.cwd / name).mkdir()
        (line.cwd / name / "__init__.py").write_text("raise SystemExit('decoy')")
    said = line.run("doctor")
    assert said.code == 0, said
    assert "celeriac, common, click, redis in this folder is not imported" in said.out


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path) as started:
        yield started


@pytest.mark.cluster
async def test_a_cluster_that_works_and_one_that_does_not(line: CommandLine, system: Cluster) -> None:
    environ = {"CELERIAC_REDIS_URL": system.url}
    alone = line.run("doctor", "--output-format", "json", **environ)
    assert alone.code == 0, alone
    assert {name: statuses(alone)[name] for name in ("coordinators", "workers")} == {
        "coordinators": "warn",
        "workers": "warn",
    }
    await asyncio.gather(system.coordinator(), system.worker())
    good = line.run("doctor", **environ)
    assert good.code == 0, good
    for words in (f"answers at {system.url}", "appendfsync always", "noeviction", "one answers", "1: worker@"):
        assert words in good.out
    assert "h:{sessions}" not in system.members["coordinator"].said()
    async with Redis.from_url(system.url) as client:
        assert await client.exists("h:{sessions}") == 0
        await client.config_set("maxmemory-policy", "allkeys-lru")
        await client.config_set("maxmemory", "100mb")
        await client.config_set("appendonly", "no")
    bad = line.run("doctor", "--output-format", "json", **environ)
    assert bad.code == 1
    assert (statuses(bad)["memory"], statuses(bad)["persistence"]) == ("fail", "warn")
