"""`batch`: many jobs from a file of JSON lines, all checked before the first is submitted."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import click
from pydantic import ValidationError

from celeriac.common.contract.errors import CeleriacError, UsageError
from celeriac.common.contract.json import JsonObject
from celeriac.common.settings import Settings
from celeriac.coordinator.batch import PARALLEL, Checked, Faults
from celeriac.coordinator.client import Client
from celeriac.coordinator.commands import options
from celeriac.coordinator.commands.jobs import DETACHED
from celeriac.coordinator.follow import OutputFormat, Streams
from celeriac.coordinator.interrupts import Interrupts
from celeriac.coordinator.jobs import JobOptions, JobResult, prepare

MOST_PARALLEL = 500
"""Each job that is waited for holds a connection; half of what the pool has (connection.WAITING_POOL_SIZE)."""
_WORST_FIRST = (1, 3, 6, 0)
"""Exit codes of jobs: failed, a limit, stopped, success."""

SettingsFor = Callable[[Path | None], Settings]
"""The settings of a job whose line names this workspace, or none."""


class BatchLine(JobOptions):
    """One line of the file: JobOptions and the prompt; `replay` names a file here."""

    prompt: str | None = None


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--wait", is_flag=True, help="Wait for all jobs; one JSON result a line as they end.")
@click.option(
    "--parallel",
    type=click.IntRange(1, MOST_PARALLEL),
    default=PARALLEL,
    show_default=True,
    help="With --wait: most jobs that are open at a time.",
)
@click.option(
    "--key-prefix",
    metavar="TEXT",
    help="Give each line without an idempotency key one made of this and its content: run again, it finds its job.",
)
@options.text_or_json
@options.redis_url
def batch(
    file: Path, wait: bool, parallel: int, key_prefix: str | None, output_format: OutputFormat, redis_url: str | None
) -> int:
    """Submit a job for each JSON line of FILE (- for stdin) and print the ids in the order of the lines.

    A line is an object with prompt, cwd, model, mode, allowed_tools, max_turns, limits, idempotency_key, title, replay
    (a file). Paths are those of the current folder. Any fault: all are named, nothing is submitted.
    """
    checked = read_batch(_text(file), str(file), _each_settings(redis_url), key_prefix)
    settings = options.settings_for({"redis.url": redis_url})
    streams = options.streams()
    if wait:
        return options.run_async(_wait(settings, checked, parallel, streams))
    return options.run_async(_submit(settings, checked, output_format, streams))


def _text(file: Path) -> str:
    if str(file) == "-":
        return options.decode_stdin(sys.stdin.buffer)
    return options.read_text(file, "batch file")


def _each_settings(redis_url: str | None) -> SettingsFor:
    """As `submit --cwd` has them, read once a workspace."""
    known: dict[Path | None, Settings] = {}

    def settings_of(cwd: Path | None) -> Settings:
        if cwd not in known:
            known[cwd] = options.settings_for({"redis.url": redis_url}, cwd)
        return known[cwd]

    return settings_of


def read_batch(text: str, source: str, settings_of: SettingsFor, key_prefix: str | None) -> tuple[Checked, ...]:
    """Check every line; empty ones are passed over. Raises UsageError that names all faults."""
    faults, checked, seen = Faults(source), [], Counter[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            job = _parse(line)
            if key_prefix is not None and job.idempotency_key is None:
                job = job.model_copy(update={"idempotency_key": _key(key_prefix, line, seen)})
            one = Checked(number, prepare(job.prompt, job, settings_of(job.cwd)))
        except UsageError as error:
            faults.add(number, error)
        else:
            faults.same_key(one)
            checked.append(one)
    faults.check()
    if not checked:
        raise UsageError(f'{source}: it holds no job; write one JSON object a line, such as {{"prompt": "…"}}')
    return tuple(checked)


def _parse(line: str) -> BatchLine:
    """One line, with the text of its replay file. Raises UsageError."""
    try:
        job = BatchLine.model_validate_json(line)
    except ValidationError as error:
        raise UsageError("; ".join(_said(error))) from None
    if "replay_source" in job.model_fields_set:
        raise UsageError("replay_source: not a field of a job; `replay` names the file")
    if job.replay is None:
        return job
    replay = options.read_text(Path(job.replay), "replay file")
    return job.model_copy(update={"replay": replay, "replay_source": job.replay})


def _said(error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_input=False, include_url=False):
        where = ".".join(str(part) for part in fault["loc"])
        what = "not a field of a job" if fault["type"] == "extra_forbidden" else fault["msg"]
        yield f"{where}: {what}" if where else what


def _key(prefix: str, line: str, seen: "Counter[str]") -> str:
    """The same for the same line of any later version of the file; equal lines are told apart by counting them."""
    content: JsonObject = json.loads(line)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    seen[digest] += 1
    return f"{prefix}:{digest}:{seen[digest]}"


async def _submit(settings: Settings, checked: tuple[Checked, ...], output: OutputFormat, streams: Streams) -> int:
    done = 0
    async with options.connect(settings) as client:
        await client.check_keys(checked)
        try:
            for one in checked:
                job = await client.create(one.submission)
                line = json.dumps({"line": one.number, "session_id": job.id})
                streams.answer(line if output is OutputFormat.JSON else job.id)
                done += 1
        except CeleriacError:
            streams.say(f"celeriac: {done} of {len(checked)} jobs are submitted; those with a key are found again")
            raise
    return 0


async def _wait(settings: Settings, checked: tuple[Checked, ...], parallel: int, streams: Streams) -> int:
    codes: list[int] = []
    async with options.connect(settings) as client:
        with Interrupts() as interrupts:
            work = _results(client, checked, parallel, streams, codes)
            if await interrupts.attend(work) is None and interrupts.count:
                streams.say(
                    f"celeriac: detached; of {len(checked)} jobs {len(codes)} have ended, those that were begun go on"
                )
                return DETACHED
    streams.say(f"celeriac: {len(codes)} jobs ended, {codes.count(0)} with success")
    return next(code for code in _WORST_FIRST if code in codes)


async def _results(
    client: Client, checked: tuple[Checked, ...], parallel: int, streams: Streams, codes: list[int]
) -> bool:
    async with aclosing(client.run_checked(checked, parallel=parallel)) as ended:
        async for number, result in ended:
            streams.answer(_result_line(number, result))
            codes.append(result.exit_code)
    return True


def _result_line(number: int, result: JobResult) -> str:
    return json.dumps({"line": number, **result.document()}, ensure_ascii=False)
