"""`celeriac dev …`: the stand-in server, the notification format and the request validator."""

import asyncio
import json
import sys
from pathlib import Path

import click
from pydantic import ValidationError

from celeriac.common.contract import notification
from celeriac.common.contract.errors import UsageError
from celeriac.coordinator.commands.options import decode_stdin, read_text
from celeriac.coordinator.interrupts import Interrupts
from celeriac.ops.processes import die_with, parent_pid
from celeriac.ops.standin.validator import validate as judge


@click.group()
def dev() -> None:
    """Tools for developers."""


@dev.group("notification")
def notification_group() -> None:
    """The task notification and its XML form."""


@notification_group.command()
def render() -> int:
    """Read a notification as JSON on stdin, print its XML."""
    try:
        document = json.loads(decode_stdin(sys.stdin.buffer))
        told = notification.Notification.model_validate(cleaned(document))
    except (ValidationError, ValueError) as error:
        raise UsageError(f"not the JSON of a notification: {_first_line(error)}") from error
    sys.stdout.write(notification.render(told) + "\n")
    return 0


@notification_group.command()
def parse() -> int:
    """Read the XML of a notification on stdin, print it as JSON. Exit 1 if it is none."""
    told = notification.parse(decode_stdin(sys.stdin.buffer))
    sys.stdout.write(json.dumps(told.model_dump(mode="json", exclude_none=True), ensure_ascii=False) + "\n")
    return 0


def cleaned(document: object) -> object:
    """Clean its texts first: JSON may hold lone surrogates, which no value of ours can."""
    if isinstance(document, dict):
        return {name: cleaned(value) for name, value in document.items()}
    return notification.clean(document) if isinstance(document, str) else document


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


@dev.command()
@click.option("--script", type=click.Path(path_type=Path), required=True, help="What it answers: a replay file.")
@click.option("--log", type=click.Path(path_type=Path), help="Append one JSON line a request to this file.")
@click.option("--bodies", type=click.Path(path_type=Path), help="Store every accepted request body in this folder.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: a free one.")
@parent_pid
def standin(script: Path, log: Path | None, bodies: Path | None, host: str, port: int, parent_pid: int | None) -> int:
    """Serve the Messages API from a script, until SIGTERM or Ctrl-C; the address is printed."""
    die_with(parent_pid)
    text = read_text(script, "replay file")
    return asyncio.run(_serve_standin(text, script, log=log, bodies=bodies, at=(host, port)))


async def _serve_standin(text: str, script: Path, *, log: Path | None, bodies: Path | None, at: tuple[str, int]) -> int:
    from celeriac.ops.standin.server import serve  # noqa: PLC0415 - loads tornado, which no other command here needs

    def ready(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    host, port = at
    serving = serve(text, str(script), host=host, port=port, log_path=log, bodies_dir=bodies, ready=ready)
    try:
        with Interrupts() as interrupts:
            await interrupts.attend(serving)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return 0


@dev.command()
@click.argument("file", type=click.Path(path_type=Path))
def validate(file: Path) -> int:
    """Check one whole request body (JSON): exit 0 valid, 1 refused with the reason, 2 unreadable."""
    try:
        body = file.read_bytes()
        json.loads(body)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as JSON: {error}") from error
    verdict = judge(body)
    for warning in verdict.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    sys.stdout.write("valid\n" if verdict.valid else f"refused: {verdict.reason}\n")
    return 0 if verdict.valid else 1
