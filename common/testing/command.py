"""The console script as a user starts it, for tests: waits for its end and keeps what it said."""

import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CELERIAC = Path(sysconfig.get_path("scripts")) / "celeriac"
LONGEST_SECONDS = 60.0
"""Nothing that a test starts this way runs longer."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command did."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs `celeriac` in `cwd` with exactly these variables."""

    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, stdin: str | bytes = "", **environ: str) -> Said:
        """Run to the end; variables may be added for this call."""
        done = subprocess.run(
            [str(CELERIAC), *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            cwd=self.cwd,
            env={"PATH": "/usr/bin:/bin", **self.environ, **environ},
            timeout=LONGEST_SECONDS,
            check=False,
        )
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())
