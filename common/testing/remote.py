"""Holds a named point in another process, one that was started with `--points FOLDER` (`testing.points.install`).

with RemoteHold(folder, "finish.before", task_id) as held:
    pid = await held.reached()
    ...                                     # whatever must come first; or kill `pid` at this very point
    held.release()
"""

from pathlib import Path
from types import TracebackType
from typing import Self

from celeriac.common.testing.points import EVERY, HOLD, REACHED
from celeriac.common.testing.waiting import until

REACH_SECONDS = 40.0
"""How long a process may take to arrive: as long as one may take to start."""


class RemoteHold:
    """Holds the first arrival at one point, of whichever process, or every one; it is in force from now on."""

    def __init__(self, folder: Path, name: str, subject: str | None = None, *, every: bool = False) -> None:
        """`subject`: only arrivals of this task id; None: of any. `every`: nobody passes, not even a wake-up that was
        sent twice; else later arrivals do."""
        self._ending = EVERY if every else HOLD
        self._stem = name if subject is None else f"{name}@{subject}"
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._waiting.touch()

    @property
    def _waiting(self) -> Path:
        return self._folder / f"{self._stem}.{self._ending}"

    def _taken(self) -> list[Path]:
        return list(self._folder.glob(f"{self._stem}.*.{REACHED}"))

    async def reached(self) -> int:
        """The process that is held there (the first of several), as soon as one is."""
        await until(self._taken, seconds=REACH_SECONDS, what=f"an arrival at {self._stem}")
        taken = min(self._taken(), key=lambda file: file.stat().st_mtime_ns)
        return int(taken.name.split(".")[-2])

    def release(self) -> None:
        """Let it go on; nobody is held here any more."""
        self._waiting.unlink(missing_ok=True)
        for taken in self._taken():  # after the line above: who arrived between the two is seen here
            taken.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
