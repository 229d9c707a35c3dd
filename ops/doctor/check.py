"""What one check found, and how checks are run so that none of them can end the others."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from celeriac.common.contract.errors import CeleriacError
from celeriac.coordinator.words import brief


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not everything that people may expect."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer."""

    name: str
    status: Status
    text: str
    """What was found."""
    remedy: str = ""
    """What to do; empty where nothing is to be done."""


def ok(name: str, text: str) -> Check:
    """Nothing to do."""
    return Check(name, Status.OK, text)


def warn(name: str, text: str, remedy: str) -> Check:
    """Worth knowing."""
    return Check(name, Status.WARN, text, remedy)


def fail(name: str, text: str, remedy: str) -> Check:
    """To be mended."""
    return Check(name, Status.FAIL, text, remedy)


def guarded(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """What `look` finds; whatever breaks inside it is a finding, not an end."""
    try:
        yield from look()
    except CeleriacError as error:
        yield fail(name, brief(str(error)), "see the text")
    except Exception as error:  # noqa: BLE001 - a border: the doctor must see even what nobody thought of
        yield fail(name, brief(f"{type(error).__name__}: {error}"), "this check itself broke; please report it")
