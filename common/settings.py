"""The settings: one frozen tree; with `layers` the only reader of the environment and of settings files (INTERFACES).

Order: defaults < user < project < local < CELERIAC_SETTINGS (one more file) < environment < flags. Files are JSON with
the names of the tree below; `permissions.deny` is the union of what all of them say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, SecretStr, ValidationError

from celeriac.common.contract.errors import BadSettings
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.models import NamedModel
from celeriac.common.contract.presence import SILENT_SECONDS
from celeriac.common.contract.task import Effort, Mode, Value
from celeriac.common.layers import ENVIRON, Leaves, collect

Label = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class RedisSettings(Value):
    """The server that holds everything."""

    url: str | None = None
    """None: the one of a live `celeriac up`, else an error."""
    prefix: str = ""
    """Before every key, so that several installations share one server."""


class WorkerSettings(Value):
    """A worker process."""

    labels: tuple[Label, ...] = ()
    """Queues `{kind}.{label}` that it serves beside `{kind}`."""
    concurrency: Count = 100
    """Tasks at once in one process; they wait on the network, so many are fine (DESIGN 4)."""

    soft_shutdown_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long a closing worker lets running commands of `sh` tasks end by themselves (CELERY.md,
    worker_soft_shutdown_timeout); agents are handed over at once."""


class CoordinatorSettings(Value):
    """A coordinator process."""

    sessions: Count = 500
    """Sessions at once in one process: they wait on the network and on each other; more are left to others."""


class LeaseSettings(Value):
    """Ownership of tasks."""

    seconds: Annotated[float, Field(ge=1)] = 15.0
    """Renewed every third of it; recovery after a crash takes about this long (DESIGN 3)."""
    silent_seconds: Positive = SILENT_SECONDS
    """No token and no tool output for so long shows as `silent`."""


class SupervisorSettings(Value):
    """The scan for lost wake-ups and expired leases."""

    scan_seconds: Annotated[float, Field(gt=0, le=2)] = 1.0
    """At most 2 s (DESIGN 3)."""
    max_attempts: Count = 3
    """Leases lost since the last real progress before the task fails as poison (PROTOCOL 3)."""
    max_attempts_total: Count = 20


class RetrySettings(Value):
    """Waits between the attempts of one model call (SPEC 5, Recovery)."""

    attempts: Count = 10
    """In all, the first one included."""
    base_seconds: Positive = 0.5
    max_seconds: Positive = 32.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.25
    """At most this part of a wait is added to it."""
    park_after_seconds: Positive = 60.0
    """A longer wait frees the slot."""


class LlmSettings(Value):
    """The model."""

    base_url: str | None = None
    """None: the address that the SDK knows."""
    api_key: SecretStr | None = None
    """Only from ANTHROPIC_API_KEY; never from a file, never into a tool's environment."""
    model: Annotated[str, Field(min_length=1)] = "claude-sonnet-5-5"
    max_tokens: Count = 8000
    read_timeout_seconds: Positive = 75.0
    """Longest silence of a stream; pings keep live ones alive (MODEL_API: 60-90 s)."""
    retry: RetrySettings = RetrySettings()
    fallback_model: str | None = None
    """Asked after three 529 in a row."""
    fallback_cooldown_seconds: Positive = 300.0
    """So long after the last 529 the first model is asked again."""
    effort: Effort | None = None
    """None: the model's default."""
    thinking: bool | None = None
    """Whether the model may think before it answers; None: the model's default."""
    models: tuple[NamedModel, ...] = ()
    """Models that are not in the catalogue, or whose facts differ."""
    standin: bool = False
    """The server at `base_url` is a stand-in: it is sent X-Celeriac-Call, and no key is needed."""


class LimitSettings(Value):
    """Bounds of one job."""

    prompt_bytes: Count = 1 << 20
    worker_turns: Count = 100
    """Tool-use turns of one run of a worker."""
    session_turns: Count | None = None


class PermissionSettings(Value):
    """Rules of SPEC 6 and the mode of a session that asks for none."""

    mode: Mode = Mode.ACCEPT_EDITS
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class SandboxSettings(Value):
    """Where commands run. Only `off` exists so far; a worker says so when it starts."""

    mode: Literal["off"] = "off"


class FlowerSettings(Value):
    """The console."""

    port: Annotated[int, Field(ge=0, le=65535)] = 5555
    user: Annotated[str, Field(pattern=r"^[^:\s]+$")] = "celeriac"
    password: SecretStr | None = None
    """None: one is made up and printed once."""


class Settings(Value):
    """Everything that can be set."""

    home: Path
    """Celeriac home: settings.json, up.json, run/."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    redis: RedisSettings = RedisSettings()
    worker: WorkerSettings = WorkerSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    lease: LeaseSettings = LeaseSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    llm: LlmSettings = LlmSettings()
    limits: LimitSettings = LimitSettings()
    permissions: PermissionSettings = PermissionSettings()
    sandbox: SandboxSettings = SandboxSettings()
    flower: FlowerSettings = FlowerSettings()

    def document(self) -> str:
        """The tree as a settings file, without the secrets and without what only the environment may set."""
        return self.model_dump_json(
            exclude={"home": True, "llm": {"api_key"}, "flower": {"password"}, "redis": {"url"}}, exclude_none=True
        )

    def secrets(self) -> tuple[str, ...]:
        """Texts that no log and no error may hold."""
        held = (self.llm.api_key, self.flower.password)
        return tuple(secret.get_secret_value() for secret in held if secret is not None)

    @staticmethod
    def tool_environment(environ: Mapping[str, str] = ENVIRON) -> dict[str, str]:
        """What a command may inherit: an allow-list, so no key is among it (SECURITY, Shell sandbox)."""
        return {
            name: value
            for name, value in environ.items()
            if name in _TOOL_VARIABLES or (name.startswith("LC_") and name[3:].isalpha())
        }


_TOOL_VARIABLES = frozenset({"PATH", "HOME", "LANG", "USER", "LOGNAME", "TMPDIR", "SHELL", "TZ", "VIRTUAL_ENV"})


def load(flags: Mapping[str, JsonValue], *, cwd: Path | None, environ: Mapping[str, str] = ENVIRON) -> Settings:
    """Read all layers.

    `flags` has dotted keys (`redis.url`) and wins; None values count as not given. `cwd` is the project's folder, None
    for processes that serve many projects (they read no project's files). Raises BadSettings, which names place, key,
    fault and remedy.
    """
    return _build(collect(flags, cwd=cwd, environ=environ))


def environment() -> dict[str, str]:
    """A copy of this process's environment, for the child processes that `run` starts."""
    return dict(ENVIRON)


def _build(leaves: Leaves) -> Settings:
    tree: JsonObject = {}
    for key, (where, value) in leaves.items():
        _put(tree, key, value, where)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise _explain(error, leaves) from None  # pydantic's text would print the value, which may be a secret


def _put(tree: JsonObject, key: str, value: JsonValue, where: str) -> None:
    *parents, name = key.split(".")
    node = tree
    for parent in parents:
        below = node.setdefault(parent, {})
        if not isinstance(below, dict):
            raise BadSettings(f"{where}: {parent} must be an object, since {key} is one of its keys")
        node = below
    node[name] = value


def _explain(error: ValidationError, leaves: Leaves) -> BadSettings:
    """Name the place that set the first offending key, and what it may hold."""
    first = error.errors(include_input=False, include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    keys = [".".join(location[:length]) for length in range(len(location), 0, -1)]
    key = next((key for key in keys if key in leaves), None) or next(
        (leaf for key in keys for leaf in leaves if leaf.startswith(f"{key}.")), keys[0]
    )
    where = leaves[key][0] if key in leaves else "settings"
    if first["type"] == "extra_forbidden":
        return BadSettings(f"{where}: {key} is not a setting; remove it or correct its spelling")
    fault = first["msg"][:1].lower() + first["msg"][1:]
    return BadSettings(f"{where}: {key}: {fault}; correct it or leave it out")
