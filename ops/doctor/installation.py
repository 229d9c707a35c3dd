"""Checks of what is installed: Python, packages in their ranges and from where they should be, programs, Flower."""

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from importlib.machinery import PathFinder
from pathlib import Path

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.substrate.embedded import find_binary
from celeriac.ops.doctor.check import Check, fail, ok, warn
from celeriac.ops.doctor.ranges import Requirement, admits, requirements
from celeriac.workers.tools.ripgrep import program

OURS = "celeriac"
OLDEST_PYTHON = (3, 11)
"""As pyproject's requires-python."""
STRANGERS = (OURS, "common", "coordinator", "workers", "ops")
"""Our folders in the repository are imported as celeriac.…, so that a stranger's folder of this name does nothing."""
INSTALL_AGAIN = "install again: `pip install --force-reinstall celeriac`, or `make` in its repository"


def python() -> Iterator[Check]:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield fail("python", f"{version} is too old", "install Python 3.11 or newer")
    else:
        yield ok("python", version)


def packages() -> Iterator[Check]:
    """Each package that we depend on is there, in its range; one line if all are right."""
    wanted = requirements(metadata.requires(OURS) or [])
    wrong = [check for requirement in wanted if (check := _judged(requirement)) is not None]
    yield from wrong or [ok("packages", f"{OURS} {metadata.version(OURS)}, {len(wanted)} packages in their ranges")]


def _judged(requirement: Requirement) -> Check | None:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return fail("packages", f"{requirement.name} is not installed", INSTALL_AGAIN)
    if admits(requirement, version):
        return None
    return fail("packages", f"{requirement.name} {version} is not {requirement.words}", INSTALL_AGAIN)


def shadowing(cwd: Path) -> Iterator[Check]:
    """What we import comes from where it was installed, not from a folder that happens to be here.

    Of ourselves nothing is asked: this very code runs.
    """
    names = [one.module for one in requirements(metadata.requires(OURS) or []) if one.module]
    wrong = list(_shadowed(names))
    for name, where in wrong:
        yield fail("shadowing", f"{name} is taken from {where}", "rename it, or take its folder out of PYTHONPATH")
    if not wrong:
        here = [name for name in (*STRANGERS, *names) if (cwd / name).is_dir() or (cwd / f"{name}.py").is_file()]
        harmless = f"; {', '.join(here)} in this folder is not imported" if here else ""
        yield ok("shadowing", f"{len(names)} packages come from where they were installed{harmless}")


def _shadowed(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    for name in names:
        spec = PathFinder.find_spec(name)  # what is imported already may have hidden its origin, as kombu does
        if spec is None or spec.origin is None:
            continue  # not installed: the check of the packages tells
        origin = Path(spec.origin).resolve()
        if not any(origin.is_relative_to(root) for root in installed) and not _is_listed(name, origin):
            yield name, origin


def _is_listed(name: str, origin: Path) -> bool:
    """Whether an installed distribution has the file: a user's or a system's packages are elsewhere than ours."""
    for one in metadata.packages_distributions().get(name, []):
        files = metadata.distribution(one).files or []
        if any(Path(str(file.locate())).resolve() == origin for file in files):
            return True
    return False


def programs(search_path: str) -> Iterator[Check]:
    """ripgrep for workers, a server for `run` and `up`."""
    try:
        yield ok("ripgrep", program())
    except CeleriacError as error:
        yield fail("ripgrep", str(error), INSTALL_AGAIN)
    try:
        yield ok("embedded server", str(find_binary(search_path)))
    except CeleriacError:
        remedy = "install valkey or redis 7.0 or newer, or name a server with CELERIAC_REDIS_URL"
        yield warn("embedded server", "there is none, so `run` and `up` cannot start one", remedy)


def console() -> Iterator[Check]:
    """Flower can be imported."""
    try:
        import_module("flower.app")
    except ImportError as error:
        yield fail("flower", f"cannot be imported: {error}", INSTALL_AGAIN)
    else:
        yield ok("flower", metadata.version("flower"))
