"""The Python examples of the README are run as they stand, on a real cluster with a stand-in for the model."""

import asyncio
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from celeriac.common.testing.cluster import cluster
from celeriac.common.testing.scripts import line, script, text

README = Path(__file__).parents[2] / "README.md"
HERE = {"redis://127.0.0.1:6379/0": "{url}", "/srv/project": "{folder}"}
"""What the examples name, and what the test has instead."""


def programs() -> list[str]:
    """Each example; one that awaits is put into a coroutine, as a reader would."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return [_whole(block) if "await " in block else block for block in blocks]


def _whole(block: str) -> str:
    return f"import asyncio\nasync def main():\n{textwrap.indent(block, '    ')}\nasyncio.run(main())\n"


@pytest.mark.cluster
async def test_the_examples_run(tmp_path: Path) -> None:
    assert programs()
    async with cluster(tmp_path) as system:
        await system.standin(script(line("s", 1, text("The commit is fine."), repeat=99)))
        await system.coordinator()
        await system.worker()
        system.refuse_shams()
        for program in programs():
            for named, instead in HERE.items():
                program = program.replace(named, instead.format(url=system.url, folder=tmp_path))  # noqa: PLW2901
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-W", "always::ResourceWarning", "-c", program],
                cwd=tmp_path,
                env=system.environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), program
            assert "follow" not in program or "assistant" in done.stdout
            assert "The commit is fine." in done.stdout
