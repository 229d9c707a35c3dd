"""Folders of one start in the Celeriac home, and what its child processes inherit.

Children run in a folder of ours, never in the user's, so that no `celery.py` of a workspace is imported.
"""

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from celeriac.common.contract.errors import UsageError
from celeriac.common.settings import Settings

SOFT_SHUTDOWN_SECONDS = 5.0
"""The grace of running commands when a whole local cluster ends: less than that of its processes (children.py), so
that a command which is cut off is told of as such, and not found again as one whose worker was lost."""


def run_folder(home: Path) -> Path:
    """A new `run/PID-RANDOM` in the home; folders that killed processes left are removed. Raises UsageError."""
    parent = home / "run"
    try:
        private(parent)
        _sweep(parent)
        return private(parent / f"{os.getpid()}-{secrets.token_hex(4)}")
    except OSError as error:
        raise not_writable(parent, error) from error


def private(folder: Path) -> Path:
    """Make it (with what is above), open to its owner only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def not_writable(path: Path, error: OSError) -> UsageError:
    """The error for a home that takes no files, with the way out."""
    return UsageError(f"{path} cannot be written ({error.strerror}); set CELERIAC_HOME")


def child_environment(settings: Settings, environ: Mapping[str, str], folder: Path, url: str) -> dict[str, str]:
    """`environ` with our settings in a file of `folder`, the server's `url`, and no way to import from a relative
    folder. Raises UsageError if the file cannot be written."""
    file = folder / "settings.json"
    try:
        file.write_text(settings.document(), encoding="utf-8")
    except OSError as error:
        raise not_writable(file, error) from error
    shutdown = min(settings.worker.soft_shutdown_seconds, SOFT_SHUTDOWN_SECONDS)
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if Path(path).is_absolute()]
    return {
        **environ,
        "CELERIAC_HOME": str(settings.home),
        "CELERIAC_SETTINGS": str(file),
        "CELERIAC_REDIS_URL": url,
        "CELERIAC_WORKER_SOFT_SHUTDOWN_SECONDS": str(shutdown),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
    }


def _sweep(parent: Path) -> None:
    for folder in parent.iterdir():
        pid = folder.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
