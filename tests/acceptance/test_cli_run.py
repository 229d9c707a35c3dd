"""`celeriac run`: one job on a cluster of its own, and nothing left of it."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.testing.command import CELERIAC, CommandLine, Said
from celeriac.common.testing.waiting import until

ANSWER: JsonObject = {"path": "s", "run": 1, "turn": 1, "reply": {"content": [{"type": "text", "text": "The answer."}]}}
QUESTION: JsonObject = {
    "path": "s",
    "run": 1,
    "turn": 1,
    "reply": {
        "content": [{"type": "tool_use", "name": "SyntheticOutput", "input": {"kind": "question", "result": "Which?"}}]
    },
}
SLOW: JsonObject = {**ANSWER, "pace_ms": 60_000}
DECOY = "raise SystemExit('decoy')\n"


class Place:
    """A workspace full of decoys, a home, and replay files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.work = folder / "work"
        for name in ("common", "coordinator", "workers", "ops"):
            (self.work / name).mkdir(parents=True)
            (self.work / name / "__init__.py").write_text(DECOY)
        for name in ("celery.py", "redis.py"):
            (self.work / name).write_text(DECOY)
        self.line = CommandLine(self.work, {"HOME": str(folder), "CELERIAC_HOME": str(self.home)})

    def replay(self, *lines: JsonObject) -> str:
        file = self.folder / "replay.jsonl"
        header = {"v": 1, "job": {"prompt": "What is it?"}}
        file.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
        return str(file)

    def run(self, *arguments: str) -> Said:
        return self.line.run("run", *arguments)

    def left(self) -> list[str]:
        """Processes that know this home, and folders of runs."""
        found = [file.parent.name for file in Path("/proc").glob("[0-9]*/environ") if self._knows(file)]
        return [*found, *map(str, (self.home / "run").glob("*"))]

    def _knows(self, file: Path) -> bool:
        try:
            return f"CELERIAC_HOME={self.home}".encode() in file.read_bytes()
        except OSError:
            return False


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    assert not made.left()


def test_the_answer_alone_is_on_stdout(place: Place) -> None:
    said = place.run("--replay", place.replay(ANSWER))
    assert (said.code, said.out) == (0, "The answer.\n"), said.err
    assert "decoy" not in said.err
    assert "total: " in said.err


def test_json_is_one_document(place: Place) -> None:
    said = place.run("--replay", place.replay(ANSWER), "--output-format", "json")
    document = json.loads(said.out)
    assert (document["type"], document["subtype"], document["result"]) == ("result", "success", "The answer.")
    assert (said.code, document["is_error"], said.err) == (0, False, "")


def test_stream_json_is_one_line_per_event_and_ends_with_the_result(place: Place) -> None:
    said = place.line.run("-p", "--replay", place.replay(ANSWER), "--output-format", "stream-json")
    events = [json.loads(line) for line in said.out.splitlines()]
    assert {event["type"] for event in events} >= {"system", "assistant", "user", "result"}
    assert [event["type"] for event in events].index("result") == len(events) - 1
    assert all("session_id" in event for event in events)


def test_a_replay_that_does_not_fit_fails_and_names_the_place(place: Place) -> None:
    unused = place.run("--replay", place.replay(ANSWER, {**ANSWER, "path": "s/1.0"}))
    assert unused.code == 1
    assert "s/1.0 run 1 turn 1" in unused.err
    missing = place.run("--replay", place.replay())
    assert missing.code == 1
    assert "replay has no answer for s run 1 turn 1" in missing.err


def test_a_question_that_nobody_can_answer_ends_the_job(place: Place) -> None:
    said = place.run("--replay", place.replay(QUESTION), "--output-format", "json")
    document = json.loads(said.out)
    assert (said.code, document["reason"], document["question"]) == (1, "question", "Which?")
    assert "Which?" in said.err


async def started(place: Place) -> asyncio.subprocess.Process:
    """A run that waits for its model."""
    process = await asyncio.create_subprocess_exec(
        str(CELERIAC),
        *("run", "--replay", place.replay(SLOW)),
        cwd=place.work,
        env={"PATH": "/usr/bin:/bin", **place.line.environ},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(40):
        while b"  running  " not in await process.stderr.readline():
            pass
    return process


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_ctrl_c_once_stops_the_job_and_cleans_up(place: Place) -> None:
    process = await started(place)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):
        _, err = await process.communicate()
    assert process.returncode == 6
    assert b"stopped" in err


async def test_ctrl_c_twice_kills(place: Place) -> None:
    process = await started(place)
    for child in children_of(process.pid):
        os.kill(child, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while b"Ctrl-C again" not in await process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 6


async def test_a_killed_run_takes_its_processes_with_it(place: Place) -> None:
    process = await started(place)
    process.kill()
    await process.communicate()
    await until(lambda: all(name.startswith("/") for name in place.left()), seconds=30)
    again = place.run("--replay", place.replay(ANSWER))
    assert again.code == 0
