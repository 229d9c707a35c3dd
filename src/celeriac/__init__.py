"""Celeriac: a distributed task-queue orchestrator for AI agents.

The public API is small: `Client` submits jobs and follows them, `JobOptions` says how, `JobResult` is what comes out.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celeriac.coordinator.client import Client, Job
    from celeriac.coordinator.jobs import JobOptions, JobResult

__all__ = ["Client", "Job", "JobOptions", "JobResult", "__version__"]

__version__ = "0.1.0"

_HOMES = {
    "Client": "celeriac.coordinator.client",
    "Job": "celeriac.coordinator.client",
    "JobOptions": "celeriac.coordinator.jobs",
    "JobResult": "celeriac.coordinator.jobs",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used, so that `import celeriac` (and with it every command) stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module 'celeriac' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - the point of this function

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
