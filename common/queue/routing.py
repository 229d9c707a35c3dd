"""Which queue a task goes to: `{kind}`, or `{kind}.{label}` when it needs a host with that label (INTERFACES)."""

import re
from collections.abc import Iterable

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.kinds import SERVED, Kind

_LABEL = re.compile(r"[a-z0-9-]{1,32}")


def check_label(label: str) -> str:
    """A label as it is. Raises UsageError."""
    if _LABEL.fullmatch(label) is None:
        raise UsageError(f"label {label!r}: use 1 to 32 of a-z, 0-9 and -")
    return label


def queue_for(kind: Kind, label: str | None = None) -> str:
    """The queue of one task."""
    return kind.value if label is None else f"{kind.value}.{check_label(label)}"


def queues_for(labels: Iterable[str]) -> list[str]:
    """The queues that a worker with these labels consumes."""
    checked = [check_label(label) for label in labels]
    return [queue_for(kind, label) for kind in sorted(SERVED) for label in [None, *checked]]
