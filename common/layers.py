"""The layers of the settings: where each value comes from, and which value wins. Checks no value but its place.

Apart from `settings`, which builds and checks the tree, so that a command that needs two values does not load pydantic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from celeriac.common.contract.errors import BadSettings

if TYPE_CHECKING:
    from celeriac.common.contract.json import JsonObject, JsonValue

ENVIRON: Mapping[str, str] = os.environ  # noqa: TID251 - the lower half of settings, the one reader of the environment
"""This process's environment."""

_VARIABLES: dict[str, str] = {
    "CELERIAC_HOME": "home",
    "CELERIAC_LOG_LEVEL": "log_level",
    "CELERIAC_REDIS_URL": "redis.url",
    "CELERIAC_REDIS_PREFIX": "redis.prefix",
    "CELERIAC_WORKER_LABELS": "worker.labels",
    "CELERIAC_WORKER_CONCURRENCY": "worker.concurrency",
    "CELERIAC_WORKER_SOFT_SHUTDOWN_SECONDS": "worker.soft_shutdown_seconds",
    "CELERIAC_COORDINATOR_SESSIONS": "coordinator.sessions",
    "CELERIAC_LEASE_SECONDS": "lease.seconds",
    "CELERIAC_SUPERVISOR_SCAN_SECONDS": "supervisor.scan_seconds",
    "CELERIAC_SUPERVISOR_MAX_ATTEMPTS": "supervisor.max_attempts",
    "CELERIAC_SUPERVISOR_MAX_ATTEMPTS_TOTAL": "supervisor.max_attempts_total",
    "ANTHROPIC_API_KEY": "llm.api_key",
    "ANTHROPIC_BASE_URL": "llm.base_url",
    "CELERIAC_MODEL": "llm.model",
    "CELERIAC_MAX_TOKENS": "llm.max_tokens",
    "CELERIAC_READ_TIMEOUT_SECONDS": "llm.read_timeout_seconds",
    "CELERIAC_FALLBACK_MODEL": "llm.fallback_model",
    "CELERIAC_EFFORT": "llm.effort",
    "CELERIAC_RETRY_ATTEMPTS": "llm.retry.attempts",
    "CELERIAC_STANDIN": "llm.standin",
    "CELERIAC_PROMPT_BYTES": "limits.prompt_bytes",
    "CELERIAC_WORKER_TURNS": "limits.worker_turns",
    "CELERIAC_PERMISSION_MODE": "permissions.mode",
    "CELERIAC_FLOWER_PORT": "flower.port",
    "CELERIAC_FLOWER_USER": "flower.user",
    "CELERIAC_FLOWER_PASSWORD": "flower.password",
}
"""Variable → key. An empty variable counts as not set."""

_LISTS = frozenset({"worker.labels"})
"""Keys whose variable holds a list with commas."""

_BYPASS = "bypassPermissions"
"""Mode.BYPASS, whose module loads pydantic."""
_NEVER_IN_FILES = {
    "llm.api_key": "a key in a file ends up in a repository; set ANTHROPIC_API_KEY",
    "home": "the home is where settings files are found; set CELERIAC_HOME",
}
_LEADS_AWAY = "a cloned repository could send your key elsewhere; set it in the user's settings or in the environment"
_NEVER_IN_A_PROJECT = {"llm.base_url": _LEADS_AWAY, "llm.standin": _LEADS_AWAY}
"""A project's files come with the repository: they are as trusted as whoever wrote it."""

Leaves: TypeAlias = "dict[str, tuple[str, JsonValue]]"
"""Dotted key → (where it was set, value)."""


def collect(flags: Mapping[str, JsonValue], *, cwd: Path | None, environ: Mapping[str, str]) -> Leaves:
    """Read all layers; the arguments are those of `settings.load`. Raises BadSettings."""
    home = Path(environ.get("CELERIAC_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".celeriac")
    leaves: Leaves = {"home": ("default", str(home.absolute()))}
    denied: list[JsonValue] = []
    extra = environ.get("CELERIAC_SETTINGS")
    if extra and not Path(extra).is_file():
        raise BadSettings(f"environment variable CELERIAC_SETTINGS: there is no file {extra}")
    for file, is_project in _files(home, cwd, extra):
        layer = _read_file(file, is_project=is_project)
        _collect_denied(layer, denied)
        leaves |= layer
    leaves |= _read_environment(environ)
    leaves |= {key: (f"option {_option(key)}", value) for key, value in flags.items() if value is not None}
    if denied:
        leaves["permissions.deny"] = ("permissions.deny of all settings files", denied)
    return leaves


def _option(key: str) -> str:
    return "--" + key.replace(".", "-").replace("_", "-")


def _files(home: Path, cwd: Path | None, extra: str | None) -> Iterator[tuple[Path, bool]]:
    """Later ones win; True for those that come with a repository."""
    yield home / "settings.json", False
    if cwd is not None:
        for name in ("settings.json", "settings.local.json"):
            file = cwd / ".celeriac" / name
            if file.parent.resolve() != home.resolve():  # then it was read above, as the user's own
                yield file, True
    if extra:
        yield Path(extra), False


def _read_file(file: Path, *, is_project: bool) -> Leaves:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise BadSettings(f"{file}: cannot be read as JSON ({error}); correct or remove it") from error
    if not isinstance(document, dict):
        raise BadSettings(f'{file}: must hold one JSON object, such as {{"llm": {{"model": "…"}}}}')
    leaves = {key: (str(file), value) for key, value in _flatten(document)}
    forbidden = {**_NEVER_IN_FILES, **(_NEVER_IN_A_PROJECT if is_project else {})}
    for key in leaves.keys() & forbidden.keys():
        raise BadSettings(f"{file}: {key} is not taken from here: {forbidden[key]}")
    if is_project and leaves.get("permissions.mode", ("", None))[1] == _BYPASS:
        raise BadSettings(f"{file}: a project cannot set permissions.mode to {_BYPASS}; use --permission-mode")
    return leaves


def _collect_denied(layer: Leaves, denied: list[JsonValue]) -> None:
    """Add this layer's rules; a list of something else is left to the check of the whole tree."""
    rules = layer.get("permissions.deny", ("", None))[1]
    if isinstance(rules, list) and all(isinstance(rule, str) for rule in rules):
        layer.pop("permissions.deny")
        denied.extend(rule for rule in rules if rule not in denied)


def _flatten(document: JsonObject, prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_environment(environ: Mapping[str, str]) -> Leaves:
    leaves: Leaves = {}
    for variable, key in _VARIABLES.items():
        if text := environ.get(variable, "").strip():
            value: JsonValue = [part.strip() for part in text.split(",") if part.strip()] if key in _LISTS else text
            leaves[key] = (f"environment variable {variable}", value)
    if "home" in leaves:
        leaves["home"] = (leaves["home"][0], str(Path(str(leaves["home"][1])).absolute()))
    return leaves
