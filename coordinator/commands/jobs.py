"""`submit`, `follow`, `result`, `send`, `stop`: what is done with a job on some server."""

import asyncio
import json
import sys
from typing import Unpack

import click

from celeriac.common.contract.ids import TaskId
from celeriac.common.settings import Settings
from celeriac.common.substrate.types import SendStatus
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.commands import options
from celeriac.coordinator.follow import Follower, OutputFormat, Streams, show_question, show_result
from celeriac.coordinator.interrupts import Interrupts
from celeriac.coordinator.jobs import JobOptions, JobResult, prepare
from celeriac.coordinator.questions import Questions
from celeriac.coordinator.stopping import StopLine, StopVerdict
from celeriac.coordinator.words import brief

DETACHED = 130
"""Exit code of a follow that Ctrl-C ended."""
STOPPED = 6
SECOND_CTRL_C_SECONDS = 2.0
"""How long after the first Ctrl-C a second one still means: stop the job."""


@click.command()
@click.argument("prompt", required=False)
@options.job_options
@options.text_or_json
@options.redis_url
def submit(
    prompt: str | None,
    output_format: OutputFormat,
    redis_url: str | None,
    **flags: Unpack[options.JobFlags],
) -> int:
    """Give a job to the coordinators of a server and print its id."""
    settings = options.settings_for({"redis.url": redis_url}, flags["cwd"])
    job = options.options_of(flags)
    text = options.read_prompt(prompt, job)
    return options.run_async(_submit(settings, text, job, output_format))


async def _submit(settings: Settings, prompt: str | None, job: JobOptions, output: OutputFormat) -> int:
    submission = prepare(prompt, job, settings)
    async with options.connect(settings) as client:
        created = await client.create(submission)
    streams = options.streams()
    streams.answer(json.dumps({"session_id": created.id}) if output is OutputFormat.JSON else created.id)
    if streams.terminal:
        streams.say(f"follow it with: celeriac follow {created.id}")
    return 0


@click.command()
@options.task_id
@options.after
@options.output_format
@options.redis_url
def follow(task_id: TaskId, after: str, output_format: OutputFormat, redis_url: str | None) -> int:
    """Show a job live until it ends. Ctrl-C once: stop watching; twice: stop the job."""
    settings = options.settings_for({"redis.url": redis_url})
    return options.run_async(_follow(settings, task_id, output_format, after))


async def _follow(settings: Settings, task_id: TaskId, output: OutputFormat, after: str) -> int:
    streams = options.streams()
    async with options.connect(settings) as client:
        job = Job(client, task_id)
        follower = Follower(client, job.id, streams, output, after=after)
        questions = Questions(client, follower.board.session, streams, ends_job=False)
        with Interrupts() as interrupts:
            result = await interrupts.attend(follower.run(questions))
            if result is None and interrupts.count:
                return await _detach_or_stop(client, job.id, interrupts, streams)
    if result is not None:
        return finish(result, output, streams)
    if output is not OutputFormat.TEXT:
        show_question(job.id, questions.asked[-1], streams)
    return 1


def finish(result: JobResult, output: OutputFormat, streams: Streams) -> int:
    """Show the result; its exit code."""
    show_result(result, output, streams)
    return result.exit_code


async def _detach_or_stop(client: Client, task_id: TaskId, interrupts: Interrupts, streams: Streams) -> int:
    streams.say(
        f"celeriac: detached, the job goes on; come back with: celeriac follow {task_id}\n"
        f"celeriac: Ctrl-C again within {SECOND_CTRL_C_SECONDS:.0f} s stops the job"
    )
    try:
        async with asyncio.timeout(SECOND_CTRL_C_SECONDS):
            await interrupts.reached(2)
    except TimeoutError:
        return DETACHED
    show_stop(await client.stop(task_id, "user"), streams)
    return STOPPED


@click.command()
@options.task_id
@click.option("--wait/--no-wait", default=True, help="Wait for the end (default), or fail if it has not ended.")
@options.text_or_json
@options.redis_url
def result(task_id: TaskId, wait: bool, output_format: OutputFormat, redis_url: str | None) -> int:
    """Print the final answer of a job, or the whole result of one of its tasks."""
    settings = options.settings_for({"redis.url": redis_url})
    return options.run_async(_result(settings, task_id, output_format, wait=wait))


async def _result(settings: Settings, task_id: TaskId, output: OutputFormat, *, wait: bool) -> int:
    streams = options.streams()
    async with options.connect(settings) as client:
        job = Job(client, task_id)
        record = await client.get(job.id)
        if not wait and not record.state.terminal:
            streams.say(f"celeriac: {job.id} is {record.state}, it has no result yet")
            return 1
        return finish(await job.result(), output, streams)


@click.command()
@options.task_id
@click.argument("text")
@options.redis_url
def send(task_id: TaskId, text: str, redis_url: str | None) -> int:
    """Send a message to a job or a task; `-` reads it from stdin. An ended one is opened again."""
    settings = options.settings_for({"redis.url": redis_url})
    message = options.decode_stdin(sys.stdin.buffer) if text == "-" else text
    return options.run_async(_send(settings, task_id, message))


async def _send(settings: Settings, task_id: TaskId, message: str) -> int:
    async with options.connect(settings) as client:
        job = Job(client, task_id)
        sent = await job.send(message)
    how = "opens run" if sent.status is SendStatus.REOPENED else "waits for run"
    options.streams().answer(f"{job.id}: the message {how} {sent.run}")
    return 0


@click.command()
@options.task_id
@click.option("--reason", default="user", help="Kept on the record and told to the parent.")
@options.redis_url
def stop(task_id: TaskId, reason: str, redis_url: str | None) -> int:
    """Stop a job or a task with everything below it; one line for each."""
    settings = options.settings_for({"redis.url": redis_url})
    return options.run_async(_stop(settings, task_id, reason))


async def _stop(settings: Settings, task_id: TaskId, reason: str) -> int:
    async with options.connect(settings) as client:
        lines = await Job(client, task_id).stop(reason)
    streams = options.streams()
    for line in lines:
        streams.answer(stop_text(line))
    return 1 if any(line.verdict is StopVerdict.UNCONFIRMED for line in lines) else 0


def show_stop(lines: tuple[StopLine, ...], streams: Streams) -> None:
    """One line a descendant, as progress."""
    for line in lines:
        streams.say(stop_text(line))


def stop_text(line: StopLine) -> str:
    """`a-…  stopped  title`, and why it is not confirmed where it is not."""
    why = f"  ({line.why})" if line.why else ""
    return f"{line.task_id}  {line.verdict}  {brief(line.title, 80)}{why}"
