"""The client against the substrate on an in-memory server."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from celeriac.common.contract.errors import NotFound, Refused, UsageError
from celeriac.common.contract.events import ResultEvent
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import NewLine, Origin, text_block
from celeriac.common.contract.task import Outcome, State, Subtype, Usage
from celeriac.common.settings import Settings
from celeriac.common.substrate.leases import Lease, Terms
from celeriac.common.substrate.store import Substrate
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.follow import Follower, OutputFormat, Streams
from celeriac.coordinator.jobs import JobOptions
from celeriac.coordinator.questions import Questions
from celeriac.coordinator.stopping import StopVerdict

SETTINGS = Settings(home=Path("/nowhere"))
REPLAY = '{"v":1,"job":{"prompt":"hi"}}\n'


@pytest.fixture
async def substrate() -> AsyncIterator[Substrate]:
    server = FakeServer()
    made = Substrate.over(
        FakeAsyncRedis(server=server),
        FakeAsyncRedis(server=server),
        terms=Terms(),
    )
    yield made
    await made.aclose()


@pytest.fixture
def client(substrate: Substrate) -> Client:
    return Client(substrate, SETTINGS)


async def claim(substrate: Substrate, task_id: TaskId) -> Lease:
    lease = await substrate.claim(task_id, None, process="test")
    assert isinstance(lease, Lease)
    return lease


def line(*blocks: JsonObject, turn: int = 1) -> NewLine:
    return NewLine(run=1, turn=turn, role="assistant", content=blocks, origin=Origin.MODEL)


async def complete(lease: Lease, answer: str) -> None:
    prompt = NewLine(run=1, turn=1, role="user", content=(text_block("hi"),), origin=Origin.PROMPT)
    await lease.append([prompt])
    await lease.append([line(text_block(answer))], usage=Usage(output_tokens=5, turns=1))
    usage = Usage(output_tokens=5, turns=1)
    await lease.finish(Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text=answer, usage=usage))


def streams() -> Streams:
    return Streams(io.StringIO(), io.StringIO())


async def follow(client: Client, job: Job, output: OutputFormat) -> tuple[list[str], list[str]]:
    shown = streams()
    questions = Questions(client, job.id, shown, ends_job=True)
    await Follower(client, job.id, shown, output).run(questions)
    assert isinstance(shown.out, io.StringIO)
    assert isinstance(shown.err, io.StringIO)
    return shown.out.getvalue().splitlines(), shown.err.getvalue().splitlines()


async def test_a_job_is_submitted_followed_and_read(client: Client, substrate: Substrate, tmp_path: Path) -> None:
    async with asyncio.timeout(20):
        job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
        await complete(await claim(substrate, job.id), "hello")
        events = [event async for event in job.follow()]
        result = await job.result()
    assert isinstance(events[-1], ResultEvent)
    assert (result.result, result.exit_code, result.usage.output_tokens) == ("hello", 0, 5)
    assert [record.task_id for record in await client.list()] == [job.id]


async def test_following_waits_for_the_end_and_says_what_happens(
    client: Client, substrate: Substrate, tmp_path: Path
) -> None:
    async with asyncio.timeout(20):
        job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
        following = asyncio.create_task(follow(client, job, OutputFormat.TEXT))
        await complete(await claim(substrate, job.id), "hello")
        out, err = await following
    assert not out
    assert any("hello" in text for text in err)
    assert "completed" in err[-1]


async def test_stream_json_has_a_line_per_event_and_leaves_the_result_to_the_end(
    client: Client, substrate: Substrate, tmp_path: Path
) -> None:
    async with asyncio.timeout(20):
        job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
        await complete(await claim(substrate, job.id), "hello")
        out, err = await follow(client, job, OutputFormat.STREAM)
    assert not err
    assert any('"type":"assistant"' in text for text in out)
    assert not any('"type":"result"' in text for text in out)


async def test_one_key_is_one_job(client: Client, tmp_path: Path) -> None:
    options = JobOptions(cwd=tmp_path, idempotency_key="k", replay=REPLAY)
    first = await client.submit("Say hi", options)
    assert (await client.submit("Say hi", options)).id == first.id
    with pytest.raises(UsageError, match="another request"):
        await client.submit("Say bye", options)
    with pytest.raises(UsageError, match="another request"):
        await client.submit("Say hi", options.model_copy(update={"replay": REPLAY + "\n"}))


async def test_nothing_is_created_by_a_bad_submit(client: Client, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        await client.submit("", JobOptions(cwd=tmp_path))
    with pytest.raises(UsageError):
        await client.submit("x", JobOptions(cwd=tmp_path, replay="bad"))
    assert not await client.list()


async def test_a_job_that_nobody_works_on_is_stopped_at_once(client: Client, tmp_path: Path) -> None:
    async with asyncio.timeout(20):
        job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
        (stopped,) = await job.stop()
        assert (stopped.task_id, stopped.verdict) == (job.id, StopVerdict.STOPPED)
        (again,) = await job.stop()
        assert again.verdict is StopVerdict.FINISHED
        assert (await job.result()).exit_code == 6


async def test_a_message_reopens_an_ended_job_and_its_usage_adds_up(
    client: Client, substrate: Substrate, tmp_path: Path
) -> None:
    async with asyncio.timeout(20):
        job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
        await complete(await claim(substrate, job.id), "hello")
        assert (await job.send("and again")).run == 2
        lease = await claim(substrate, job.id)
        consume = [entry.id for entry in await substrate.inboxes.unread(job.id)]
        more = NewLine(run=2, turn=1, role="user", content=(text_block("and again"),), origin=Origin.MESSAGE)
        await lease.append([more], consume=consume)
        usage = Usage(output_tokens=7)
        end = Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text="bye", usage=usage)
        await lease.finish(end, [line(text_block("bye")).model_copy(update={"run": 2})])
        result = await job.result()
    assert result.result == "bye"
    assert result.usage.output_tokens == 12


async def test_a_question_where_nobody_can_answer_ends_the_job(
    client: Client, substrate: Substrate, tmp_path: Path
) -> None:
    call: JsonObject = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "SyntheticOutput",
        "input": {"kind": "question", "result": "Which one?"},
    }
    asked = NewLine(run=1, turn=1, role="user", content=(text_block("asked"),), origin=Origin.TOOLS)
    async with asyncio.timeout(20):
        job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
        lease = await claim(substrate, job.id)
        await lease.append([line(call)])
        await lease.append([asked], asked=True)
        await lease.park("inbox", "human")
        _, err = await follow(client, job, OutputFormat.TEXT)
        result = await job.result()
    assert "question: Which one?" in err
    assert (result.state, result.reason, result.exit_code) == (State.FAILED, "question", 1)


async def test_unknown_and_refusing_tasks_are_errors(client: Client, tmp_path: Path) -> None:
    unknown = client.job("s-0000000000000")
    with pytest.raises(NotFound):
        await unknown.send("hi")
    with pytest.raises(NotFound):
        await unknown.stop()
    with pytest.raises(NotFound):
        await unknown.result()
    job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
    with pytest.raises(UsageError):
        await job.send(" ")
    assert Refused("x").exit_code == 1
