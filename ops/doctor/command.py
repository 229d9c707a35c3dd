"""The command: settings first, then every check in turn, a line each."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from celeriac.common.contract.errors import BadSettings, ServerUnreachable
from celeriac.common.logs import configure, redact
from celeriac.common.settings import Settings, environment, load
from celeriac.common.terminal import may_colour
from celeriac.coordinator.servers import HOW_TO_START, resolve_url
from celeriac.coordinator.words import harmless
from celeriac.ops.doctor import installation, machine, services
from celeriac.ops.doctor.check import Check, Status, fail, guarded, ok, warn

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}
_NAME_CHARS = 16
EXIT_FAIL = 1


@click.command()
@click.option("--redis-url", metavar="URL", help="Server to look at; else CELERIAC_REDIS_URL, the settings, or `up`'s.")
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", help="Lines, or one document.")
def doctor(redis_url: str | None, output_format: str) -> int:
    """Look at everything that Celeriac needs here: one line a check, and what to do.

    `ok` is fine, `warn` works but may surprise, `fail` does not work. Without a server that is a warning, since `run`
    and `up` bring their own. Nothing is changed, no model is asked, and no key is shown.

    Exit code 0 if nothing failed, 4 if only the server does not answer, 1 for everything else.
    """
    secrets: list[str] = []
    checks: list[Check] = []
    for check in examined(redis_url, secrets):
        checks.append(check)
        if output_format == "text":
            click.echo(redact(line_of(check, colour=may_colour(sys.stdout)), secrets))
    code = exit_code(checks)
    if output_format == "json":
        document = {"checks": [asdict(check) for check in checks], "exit_code": code}
        click.echo(redact(json.dumps(document, ensure_ascii=False), secrets))
    return code


def examined(redis_url: str | None, secrets: list[str]) -> Iterator[Check]:
    """All checks, as they are made; what may not be shown is added to `secrets`."""
    cwd, environ = Path.cwd(), environment()
    yield from guarded("python", installation.python)
    yield from guarded("packages", installation.packages)
    yield from guarded("shadowing", lambda: installation.shadowing(cwd))
    yield from guarded("programs", lambda: installation.programs(environ.get("PATH", "")))
    yield from guarded("pty", machine.terminal)
    try:
        settings = load({"redis.url": redis_url}, cwd=cwd)
    except BadSettings as error:
        yield fail("settings", harmless(str(error)), "correct it: the other checks need the settings")
        return
    secrets += settings.secrets()
    configure(settings, level="error")
    yield ok("settings", "can be read")
    yield from guarded("home", lambda: machine.home(settings.home))
    yield from guarded("disk", lambda: machine.disk(settings.home))
    yield from guarded("model", lambda: services.model(settings.llm))
    yield from guarded("flower", installation.console)
    yield from guarded("flower port", lambda: services.flower_port(settings.flower))
    yield from guarded("server checks", lambda: _server(settings))


def _server(settings: Settings) -> Iterator[Check]:
    try:
        url = resolve_url(settings.redis.url, settings.home)
    except ServerUnreachable:
        yield warn("server", "none is known here, and no `celeriac up` runs", HOW_TO_START)
        return
    from celeriac.ops.doctor.server import server  # noqa: PLC0415 - loads celery, which is not needed without a server

    yield from server(url, settings.redis.prefix)


def line_of(check: Check, *, colour: bool) -> str:
    """`warn  model            no key: set …`."""
    status = f"{check.status:<4}"
    shown = click.style(status, fg=_COLOURS[check.status]) if colour else status
    told = f"{check.text}: {check.remedy}" if check.remedy else check.text
    return f"{shown}  {check.name:<{_NAME_CHARS}} {harmless(told)}"


def exit_code(checks: list[Check]) -> int:
    """As the command's help says."""
    failed = {check.name for check in checks if check.status is Status.FAIL}
    if not failed:
        return 0
    return ServerUnreachable.exit_code if failed == {"server"} else EXIT_FAIL
