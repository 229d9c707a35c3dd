"""Celeriac: a distributed task-queue orchestrator for AI agents.

The public API is small: `Client` submits jobs and follows them (`SyncClient` for programs without an event loop),
`JobOptions` says how, `JobResult` is what comes out. Everything raised on purpose is a `CeleriacError`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celeriac.common.contract.errors import CeleriacError, JobFailed
    from celeriac.common.contract.events import Event
    from celeriac.coordinator.client import Client, Job
    from celeriac.coordinator.jobs import JobOptions, JobResult
    from celeriac.coordinator.sync import SyncClient, SyncJob

__all__ = [
    "CeleriacError",
    "Client",
    "Event",
    "Job",
    "JobFailed",
    "JobOptions",
    "JobResult",
    "SyncClient",
    "SyncJob",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "CeleriacError": "celeriac.common.contract.errors",
    "Client": "celeriac.coordinator.client",
    "Event": "celeriac.common.contract.events",
    "Job": "celeriac.coordinator.client",
    "JobFailed": "celeriac.common.contract.errors",
    "JobOptions": "celeriac.coordinator.jobs",
    "JobResult": "celeriac.coordinator.jobs",
    "SyncClient": "celeriac.coordinator.sync",
    "SyncJob": "celeriac.coordinator.sync",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used, so that `import celeriac` (and with it every command) stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module 'celeriac' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - the point of this function

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
