"""The client for programs without an event loop, on a real server: threads, Ctrl-C, and what is left half-way."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celeriac import CeleriacError, JobFailed, JobOptions, SyncClient, SyncJob
from celeriac.common.contract.errors import ClientClosed, NotFound
from celeriac.common.contract.events import SystemEvent
from celeriac.common.settings import Settings
from celeriac.common.testing.servers import PrivateServer


@pytest.fixture
def settings(private_server: PrivateServer, tmp_path: Path) -> Settings:
    return Settings.model_validate(
        {"home": tmp_path, "redis": {"url": private_server.url, "prefix": f"{tmp_path.name}:"}}
    )


@pytest.fixture
def client(settings: Settings) -> Iterator[SyncClient]:
    with SyncClient.connect(settings) as connected:
        yield connected


@pytest.fixture
def job(client: SyncClient, tmp_path: Path) -> SyncJob:
    """A job that nobody works on."""
    return client.submit("Say hi", JobOptions(cwd=tmp_path))


def test_a_job_is_submitted_followed_stopped_and_read(client: SyncClient, job: SyncJob) -> None:
    assert [record.task_id for record in client.list()] == [job.id]
    assert [line.task_id for line in job.stop()] == [job.id]
    events = list(job.follow())
    assert [event.data["state"] for event in events if isinstance(event, SystemEvent)] == ["created", "stopped"]
    assert list(client.job(job.id).follow(after=events[-2].event_id)) == events[-1:]
    result = job.result()
    assert (result.task_id, result.exit_code) == (job.id, 6)
    with pytest.raises(JobFailed, match="stopped") as failed:
        result.raise_for_state()
    assert failed.value.exit_code == 6
    assert client.get(job.id).outcome == client.tree(job.id)[0].outcome
    assert (client.transcript(job.id), client.output(job.id)) == ((), "")


def test_waiting_for_a_job_gives_its_result(client: SyncClient, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: client.submit("Say hi", JobOptions(cwd=tmp_path), wait=True))
        while not client.list():
            assert not waiting.done()
        client.stop(client.list()[0].task_id, "user")
        assert waiting.result(20).exit_code == 6


def test_errors_of_the_client_arrive_as_they_are(client: SyncClient) -> None:
    with pytest.raises(NotFound):
        client.job("s-0000000000000").send("hi")
    with pytest.raises(NotFound):
        list(client.job("s-0000000000000").follow())


def test_many_threads_share_one_client(client: SyncClient, tmp_path: Path) -> None:
    options = [JobOptions(cwd=tmp_path, title=f"job {number}") for number in range(20)]
    with ThreadPoolExecutor(10) as pool:
        jobs = list(pool.map(lambda one: client.submit("Say hi", one), options))
        assert {line.verdict for lines in pool.map(lambda one: one.stop(), jobs) for line in lines} == {"stopped"}
        ended = list(pool.map(lambda one: list(one.follow()), jobs))
    assert len({job.id for job in jobs}) == 20
    assert {(len(events), events[0].type) for events in ended} == {(3, "system")}


def test_an_iterator_may_be_left_half_way(settings: Settings, tmp_path: Path) -> None:
    with SyncClient.connect(settings) as client:
        job = client.submit("Say hi", JobOptions(cwd=tmp_path))
        for event in job.follow():
            assert event.event_id
            break
        with job.follow() as events:
            next(events)
        assert list(events) == []
        with pytest.raises(ZeroDivisionError):
            for _ in job.follow():
                raise ZeroDivisionError
        kept = job.follow()
        next(kept)
        gc.collect()
        assert client.get(job.id).task_id == job.id
    with pytest.raises(ClientClosed):
        next(kept)
    kept.close()
    assert "celeriac client" not in {thread.name for thread in threading.enumerate()}


def test_closing_the_client_ends_the_calls_of_other_threads(settings: Settings, tmp_path: Path) -> None:
    begun = threading.Event()

    def watch(job: SyncJob) -> None:
        for _ in job.follow():
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        with SyncClient.connect(settings) as client:
            watching = pool.submit(watch, client.submit("Say hi", JobOptions(cwd=tmp_path)))
            assert begun.wait(20)
        with pytest.raises(ClientClosed, match="while this call waited"):
            watching.result(20)
    with pytest.raises(CeleriacError):
        client.list()


async def test_it_works_where_an_event_loop_runs(client: SyncClient, job: SyncJob) -> None:
    assert asyncio.get_running_loop().is_running()
    assert client.get(job.id).task_id == job.id


_INTERRUPTED = """
import sys
from celeriac import JobOptions, SyncClient
with SyncClient.connect(sys.argv[1]) as client:
    job = client.submit("Say hi")
    try:
        for event in job.follow():
            print(event.event_id, flush=True)
    except KeyboardInterrupt:
        job.stop()
        print("stopped", job.result().exit_code, flush=True)
        raise
"""

_LEFT = """
import asyncio, gc, sys
from celeriac import Client
async def main():
    async with Client.connect(sys.argv[1]) as client:
        job = await client.submit("Say hi")
        async for event in job.follow():
            break
        following = job.follow()
        print((await anext(following)).type, flush=True)
        waiting = asyncio.ensure_future(anext(following))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        dropped = job.follow()
        await anext(dropped)
        del dropped, following
        gc.collect()
        kept = job.follow()
        await anext(kept)
    return kept
asyncio.run(main())
"""


def _run(program: str, url: str, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", program, url]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _without_slowness(said: str) -> list[str]:
    """What asyncio's debug mode says of a busy machine is no fault of the program's."""
    return [line for line in said.splitlines() if not line.startswith("Executing <")]


def test_ctrl_c_ends_a_call_and_the_client_goes_on(private_server: PrivateServer, tmp_path: Path) -> None:
    with _run(_INTERRUPTED, private_server.url, tmp_path) as program:
        assert program.stdout is not None
        assert "-" in program.stdout.readline()
        program.send_signal(signal.SIGINT)
        out, said = program.communicate(timeout=30)
    assert out == "stopped 6\n"
    assert program.returncode == -signal.SIGINT
    err = _without_slowness(said)
    assert err[0].startswith("Traceback")
    assert err[-1] == "KeyboardInterrupt"
    for words in ("destroyed", "never awaited", "ignored", "ResourceWarning", "unclosed"):
        assert words not in said


def test_iterators_of_the_async_client_leave_nothing_behind(private_server: PrivateServer, tmp_path: Path) -> None:
    with _run(_LEFT, private_server.url, tmp_path) as program:
        out, err = program.communicate(timeout=30)
    assert (program.returncode, out, _without_slowness(err)) == (0, "system\n", [])
