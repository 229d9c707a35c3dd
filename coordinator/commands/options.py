"""Options that several commands share, and how a command gets its settings and its prompt."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO, TypedDict, TypeVar

import click

from celeriac.common.contract import ids
from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonValue
from celeriac.common.contract.task import Mode
from celeriac.common.llm.script import parse_script
from celeriac.common.logs import configure
from celeriac.common.settings import Settings, load
from celeriac.common.substrate.events import START, parse_event_id
from celeriac.coordinator.client import Client
from celeriac.coordinator.commands.completing import known_ids
from celeriac.coordinator.follow import OutputFormat, Streams
from celeriac.coordinator.jobs import JobOptions

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., object])

STDIN_BYTES = 10 * 1000 * 1000
"""Cap of piped input (CONVENTIONS, Run)."""


def _parse_id(_context: click.Context, _parameter: click.Parameter, text: str) -> TaskId:
    """Before a server is asked. Raises BadId."""
    return ids.parse(text)


def _parse_event_id(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    return parse_event_id(text)


def _parse_format(_context: click.Context, _parameter: click.Parameter, text: str) -> OutputFormat:
    return OutputFormat(text)


task_id = click.argument("task_id", metavar="ID", callback=_parse_id, shell_complete=known_ids)
redis_url = click.option("--redis-url", metavar="URL", help="Server to use; else CELERIAC_REDIS_URL or the settings.")
output_format = click.option(
    "--output-format",
    type=click.Choice([choice.value for choice in OutputFormat]),
    default=OutputFormat.TEXT.value,
    callback=_parse_format,
    help="text, one JSON document, or one JSON line per event.",
)
text_or_json = click.option(
    "--output-format",
    type=click.Choice([OutputFormat.TEXT.value, OutputFormat.JSON.value]),
    default=OutputFormat.TEXT.value,
    callback=_parse_format,
    help="text, or one JSON document.",
)

after = click.option(
    "--after",
    metavar="EVENT_ID",
    default=START,
    callback=_parse_event_id,
    help="Go on after this event: the event_id of a line of stream-json.",
)

_JOB_OPTIONS = (
    click.option("--replay", type=click.Path(path_type=Path), help="Take the model's answers from this file."),
    click.option("--cwd", type=click.Path(path_type=Path), help="Workspace; default: the current folder."),
    click.option("--model", help="Model of the session."),
    click.option("--permission-mode", type=click.Choice([mode.value for mode in Mode]), help="Mode of the whole job."),
    click.option(
        "--allowed-tools",
        "--allowedTools",
        multiple=True,
        metavar="RULES",
        help="Allow rules, with commas or repeated, e.g. 'Bash(pytest -q),Read'.",
    ),
    click.option("--max-turns", type=click.IntRange(min=1), help="Most tool-use turns of the session."),
    click.option("--idempotency-key", metavar="KEY", help="Submitting twice with one key finds the first job."),
)


def job_options(command: Command) -> Command:
    """Everything that describes a job."""
    for option in reversed(_JOB_OPTIONS):
        command = option(command)
    return command


def settings_for(flags: dict[str, JsonValue], cwd: Path | None = None) -> Settings:
    """The settings of a client command: the project is the workspace, or the current folder."""
    settings = load(flags, cwd=cwd or Path.cwd())
    configure(settings, level="warning" if settings.log_level == "info" else None)  # a command's output is not a log
    return settings


def streams() -> Streams:
    """The process's own."""
    return Streams(sys.stdout, sys.stderr)


def tell(text: str) -> None:
    """A line about the server. On the stderr of this moment: a live list stands above its own while it is drawn."""
    streams().say(f"celeriac: {text}")


def connect(settings: Settings) -> AbstractAsyncContextManager[Client]:
    """The client of a command: what it has to wait for is said on stderr."""
    return Client.connect(settings, tell=tell)


def run_async(main: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine."""
    return asyncio.run(main)


class JobFlags(TypedDict):
    """What `job_options` gives to a command."""

    replay: Path | None
    cwd: Path | None
    model: str | None
    permission_mode: str | None
    allowed_tools: tuple[str, ...]
    max_turns: int | None
    idempotency_key: str | None


def options_of(flags: JobFlags) -> JobOptions:
    """The job options of a command line. Raises UsageError."""
    replay, mode = flags["replay"], flags["permission_mode"]
    return JobOptions(
        cwd=flags["cwd"],
        model=flags["model"],
        mode=None if mode is None else Mode(mode),
        allowed_tools=tuple(rule for text in flags["allowed_tools"] for rule in split_rules(text)),
        max_turns=flags["max_turns"],
        idempotency_key=flags["idempotency_key"],
        replay=None if replay is None else read_text(replay, "replay file"),
        replay_source=str(replay),
    )


def split_rules(text: str) -> Iterator[str]:
    """`Bash(git log, x),Read` → two rules: what stands inside parentheses belongs to the rule. Raises UsageError."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if depth == 0 and (character == "," or character.isspace()):
            if rule := text[start:position].strip():
                yield rule
            start = position + 1
    if depth != 0:
        raise UsageError(f"--allowed-tools: the parentheses of {text!r} do not match")
    if rule := text[start:].strip():
        yield rule


def read_text(file: Path, what: str) -> str:
    """The text of a file that somebody named; `what` it is stands in the error. Raises UsageError."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{what} {file}: {error.strerror or error}; name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {file}: not UTF-8 text ({error.reason})") from error


def read_prompt(prompt: str | None, job: JobOptions) -> str | None:
    """The prompt given, or stdin for `-`, or piped stdin when there is none at all (a replay may bring its own)."""
    if prompt == "-" or (prompt is None and not brings_prompt(job) and not sys.stdin.isatty()):
        return decode_stdin(sys.stdin.buffer)
    return prompt


def brings_prompt(job: JobOptions) -> bool:
    """Whether the job's replay file says what to do. Raises BadReplay."""
    return job.replay is not None and bool(parse_script(job.replay, job.replay_source).header.job.prompt)


def decode_stdin(stream: BinaryIO) -> str:
    """All of it, at most STDIN_BYTES. Raises UsageError."""
    data = stream.read(STDIN_BYTES + 1)
    if len(data) > STDIN_BYTES:
        raise UsageError(f"the piped input has more than {STDIN_BYTES // 1_000_000} MB; put it into a file and name it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the piped input is not UTF-8 text ({error.reason} at byte {error.start})") from error
