"""Batches: what a file may hold, what is refused before anything exists, and the order of the results."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.task import Mode, Outcome, SessionSpec, State, Subtype
from celeriac.common.settings import Settings
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.servers import in_memory
from celeriac.common.testing.waiting import until
from celeriac.coordinator.batch import Checked
from celeriac.coordinator.client import Client
from celeriac.coordinator.commands.batch import read_batch
from celeriac.coordinator.jobs import JobOptions

SETTINGS = Settings(home=Path("/nowhere"))
REPLAY = '{"v":1,"job":{"prompt":"From the replay."}}\n'


@pytest.fixture
def substrate() -> Substrate:
    return in_memory()


@pytest.fixture
def client(substrate: Substrate) -> Client:
    return Client(substrate, SETTINGS)


def read(*lines: object, key_prefix: str | None = None) -> tuple[Checked, ...]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return read_batch(text, "jobs.jsonl", lambda _: SETTINGS, key_prefix)


def test_a_line_has_all_that_a_job_may_have(tmp_path: Path) -> None:
    (tmp_path / "replay").write_text(REPLAY)
    full = {
        "prompt": "Do it.",
        "cwd": str(tmp_path),
        "model": "m",
        "mode": "plan",
        "allowed_tools": ["Read", "Bash(git log, x)"],
        "max_turns": 3,
        "limits": {"seconds": 5},
        "idempotency_key": "k",
        "title": "A title",
        "replay": str(tmp_path / "replay"),
    }
    one, other = read("", full, "  ", {"replay": str(tmp_path / "replay")})
    task = one.submission.task
    assert (one.number, other.number) == (2, 4)
    assert (task.title, task.mode, task.tools) == ("A title", Mode.PLAN, ("Read", "Bash(git log, x)"))
    assert (task.limits.turns, task.limits.seconds) == (3, 5)
    assert task.workspace is not None
    assert task.workspace.root == str(tmp_path.resolve())
    assert one.submission.replay == REPLAY
    assert other.submission.task.title == "From the replay."


def test_a_separator_inside_a_text_ends_no_line() -> None:
    (one,) = read(json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False))
    assert isinstance(one.submission.task.spec, SessionSpec)
    assert one.submission.task.spec.prompt == "a\u2028b\x85c"


def test_all_faults_are_told_with_their_lines() -> None:
    with pytest.raises(UsageError) as caught:
        read(
            {"prompt": "good"},
            "{",
            {"prompt": " "},
            {"prompt": "x", "promt": "y", "max_turns": 0},
            {"prompt": "x", "mode": "wild"},
            {"prompt": "x", "cwd": "/no/such/folder"},
            {"prompt": "x", "replay": "/no/such/file"},
            {"prompt": "x", "replay_source": "y"},
            [1],
            {"prompt": "x", "idempotency_key": "k"},
            {"prompt": "y", "idempotency_key": "k"},
        )
    head, *faults = str(caught.value).splitlines()
    assert head == "jobs.jsonl: nothing was submitted, 9 to correct:"
    assert [fault.split(":")[0].strip() for fault in faults] == [f"line {n}" for n in (2, 3, 4, 5, 6, 7, 8, 9, 11)]
    told = dict(zip((2, 3, 4, 5, 6, 7, 8, 9, 11), faults, strict=True))
    assert "prompt is empty" in told[3]
    assert "promt: not a field of a job" in told[4]
    assert "max_turns" in told[4]
    assert "mode" in told[5]
    assert "/no/such/folder does not exist" in told[6]
    assert "/no/such/file" in told[7]
    assert "idempotency key of line 10" in told[11]


def test_a_file_without_a_job_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="holds no job"):
        read("", " ")


def test_made_keys_stay_with_the_content_of_a_line_wherever_it_stands() -> None:
    def ids(*lines: object, prefix: str = "p") -> list[str]:
        return [one.submission.task.task_id for one in read(*lines, key_prefix=prefix)]

    a, b, keyed = {"prompt": "a"}, {"prompt": "b"}, {"prompt": "c", "idempotency_key": "k"}
    first, second, twin, own = ids(a, b, a, keyed)
    assert len({first, second, twin, own}) == 4
    assert ids(b, {"prompt": "new"}, keyed, a)[0::2] == [second, own]
    assert ids(b, a, '{ "prompt" : "a" }') == [second, first, twin]
    assert ids(a, prefix="q") != [first]


async def end(substrate: Substrate, title: str, open_at_once: list[int]) -> None:
    """End the job of this title when it is there; note how many are open then."""

    async def found() -> bool:
        return title in await titles(substrate)

    await until(found, what=title)
    open_at_once.append(len(await titles(substrate)))
    task_id = (await titles(substrate))[title]
    lease = await substrate.claim(task_id, None, process="test")
    assert isinstance(lease, Lease)
    await lease.finish(Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text=title))


async def titles(substrate: Substrate) -> dict[str, TaskId]:
    page = await substrate.sessions.page(0, 100)
    records = [await substrate.records.get(task_id) for task_id in page]
    return {record.title: record.task_id for record in records if not record.state.terminal}


async def test_results_come_as_jobs_end_and_no_more_are_open_than_allowed(
    client: Client, substrate: Substrate, tmp_path: Path
) -> None:
    jobs = [(f"job {number}", JobOptions(cwd=tmp_path)) for number in range(1, 6)]
    open_at_once: list[int] = []
    order = [2, 1, 4, 3, 5]
    async with asyncio.timeout(30), aclosing(client.batch(jobs, parallel=2)) as ended:
        for number in order:
            ending = asyncio.create_task(end(substrate, f"job {number}", open_at_once))
            given, result = await anext(ended)
            await ending
            assert (given, result.result) == (number, f"job {number}")
        with pytest.raises(StopAsyncIteration):
            await anext(ended)
    assert max(open_at_once) == 2


async def test_a_batch_that_is_run_again_finds_its_jobs(client: Client, substrate: Substrate, tmp_path: Path) -> None:
    def options(key: str) -> JobOptions:
        return JobOptions(cwd=tmp_path, idempotency_key=key)

    jobs = [("one", options("1")), ("two", options("2"))]
    async with asyncio.timeout(30):
        async with aclosing(client.batch(jobs)) as ended:
            ending = asyncio.create_task(end(substrate, "one", []))
            assert (await anext(ended))[0] == 1
            await ending
        ending = asyncio.create_task(end(substrate, "two", []))
        assert {number: result.result async for number, result in client.batch(jobs)} == {1: "one", 2: "two"}
        await ending
        assert len(await client.list()) == 2
        with pytest.raises(UsageError, match=r"1 to correct:\n  line 2: .*another request"):
            await anext(client.batch([("three", options("3")), ("other", options("2"))]))
        with pytest.raises(UsageError, match=r"line 1: the prompt is empty"):
            await anext(client.batch([("", options("3")), ("four", options("4"))]))
        with pytest.raises(UsageError, match="at least 1"):
            await anext(client.batch([("three", options("3"))], parallel=0))
    assert len(await client.list()) == 2, "nothing of a bad batch is submitted"
