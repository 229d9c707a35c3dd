"""Which processes of this machine run, by a marker in their command line: whether anything is left of a command."""

from pathlib import Path

from celeriac.common.testing.waiting import until


def marked(marker: str) -> list[str]:
    """Command lines of running processes that hold the marker."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # ended meanwhile
            continue
        if marker in line:
            found.append(line)
    return found


def of_home(home: Path, *words: str) -> list[int]:
    """Processes that were started with this Celeriac home and whose command line holds these words, each whole."""
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if _is_of(process, home, words)]


def _is_of(process: Path, home: Path, words: tuple[str, ...]) -> bool:
    try:
        environ = (process / "environ").read_bytes()
        command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # ended meanwhile, or not ours to read
        return False
    return f"CELERIAC_HOME={home}".encode() in environ.split(b"\0") and set(words) <= set(command)


async def running(marker: str, count: int = 1, *, seconds: float = 20.0) -> None:
    """Wait until at least `count` processes hold the marker."""
    await until(lambda: len(marked(marker)) >= count, seconds=seconds, what=f"{count} processes with {marker}")


async def gone(marker: str, *, seconds: float = 5.0) -> None:
    """Wait until none does."""
    await until(lambda: not marked(marker), seconds=seconds, what=f"no process with {marker}")
