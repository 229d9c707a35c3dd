"""`list`: the jobs of a server. Loads neither pydantic nor the client: people and scripts call it often."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from celeriac.common.contract.errors import BadSettings, ServerUnreachable
from celeriac.common.contract.presence import SILENT_SECONDS, Presence
from celeriac.common.layers import ENVIRON, Leaves, collect
from celeriac.common.substrate.listing import TERMINAL, Listed, Page, read_page
from celeriac.common.substrate.patience import FIRST_PATIENCE_SECONDS, Outage, wait_for
from celeriac.coordinator.servers import no_answer, resolve_url, shown
from celeriac.coordinator.words import brief, duration


@click.command("list")
@click.option("--count", type=click.IntRange(1, 1000), default=50, help="How many, newest first.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="How many to skip.")
@click.option(
    "--output-format", type=click.Choice(["text", "json"]), default="text", help="text, or one JSON document."
)
@click.option("--redis-url", metavar="URL", help="Server to use; else CELERIAC_REDIS_URL or the settings.")
def list_jobs(count: int, offset: int, output_format: str, redis_url: str | None) -> int:
    """List the jobs of a server, newest first."""
    leaves = collect({"redis.url": redis_url}, cwd=Path.cwd(), environ=ENVIRON)
    url = resolve_url(_text(leaves, "redis.url"), Path(_text(leaves, "home") or ""))
    prefix, silent_ms = _text(leaves, "redis.prefix") or "", round(_silent_seconds(leaves) * 1000)
    page = _page(url, lambda: read_page(url, prefix=prefix, offset=offset, count=count, silent_ms=silent_ms))
    if output_format == "json":
        sys.stdout.write(json.dumps([asdict(one) for one in page.sessions], ensure_ascii=False) + "\n")
    else:
        sys.stdout.writelines(f"{list_line(one, page.now_ms)}\n" for one in page.sessions)
    return 0


def _page(url: str, read: Callable[[], Page]) -> Page:
    """Read the page; a server that may just be restarting is waited for. Raises ServerUnreachable."""
    outage = Outage(shown(url), lambda text: click.echo(f"celeriac: {text}", err=True))
    try:
        return wait_for(read, outage, broken=(ServerUnreachable,), seconds=FIRST_PATIENCE_SECONDS)
    except ServerUnreachable as error:
        raise no_answer(url, error.__cause__) from error


def _text(leaves: Leaves, key: str) -> str | None:
    where, value = leaves.get(key, ("", None))
    if value is not None and not isinstance(value, str):
        raise BadSettings(f"{where}: {key} must be a text; correct it or leave it out")
    return value


def _silent_seconds(leaves: Leaves) -> float:
    where, value = leaves.get("lease.silent_seconds", ("", SILENT_SECONDS))
    if not isinstance(value, int | float) or value <= 0:
        raise BadSettings(f"{where}: lease.silent_seconds must be a number of seconds above 0; correct or leave it out")
    return value


def list_line(one: Listed, now_ms: int) -> str:
    """`s-…  running  run 1  2 min 3 s  title`; what is out of the ordinary stands in the state's place."""
    state = one.state if one.presence in {None, Presence.ALIVE} else str(one.presence)
    elapsed = duration(max(0, (one.ended_at if one.state in TERMINAL else now_ms) - one.created_at))
    return f"{one.session_id}  {state:<16}  run {one.run}  {elapsed:>12}  {brief(one.title, 80)}"
