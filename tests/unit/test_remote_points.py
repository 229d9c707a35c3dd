"""A named point is held in another process, by a file."""

import asyncio
import os
import sys
from pathlib import Path

from celeriac.common.testing.remote import RemoteHold
from celeriac.common.testing.waiting import until

ARRIVER = """
import asyncio, pathlib, sys
from celeriac.common.testing import points

async def main():
    points.install(pathlib.Path(sys.argv[1]))
    await points.point("finish.before", "other")
    await points.point("finish.before", "task")
    pathlib.Path(sys.argv[1], "passed").touch()

asyncio.run(main())
"""


async def arriver(folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", ARRIVER, str(folder))


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


async def test_the_process_that_arrives_is_held_until_it_is_released(tmp_path: Path) -> None:
    with RemoteHold(tmp_path, "finish.before", "task") as held:
        process = await arriver(tmp_path)
        assert await held.reached() == process.pid != os.getpid()
        assert not (tmp_path / "passed").exists()
        held.release()
        assert await process.wait() == 0
    assert names(tmp_path) == ["passed"]


async def test_a_hold_of_any_task_takes_the_first_and_of_two_processes_one(tmp_path: Path) -> None:
    with RemoteHold(tmp_path, "finish.before") as held:
        first, second = await arriver(tmp_path), await arriver(tmp_path)
        pid = await held.reached()
        (other,) = [process for process in (first, second) if process.pid != pid]
        assert await other.wait() == 0
        held.release()
        await asyncio.gather(first.wait(), second.wait())


async def test_a_hold_that_is_given_up_holds_nobody(tmp_path: Path) -> None:
    with RemoteHold(tmp_path, "finish.before", "task"):
        pass
    process = await arriver(tmp_path)
    await until((tmp_path / "passed").exists)
    assert await process.wait() == 0


async def test_a_gate_holds_everybody(tmp_path: Path) -> None:
    with RemoteHold(tmp_path, "finish.before", "task", every=True) as held:
        processes = [await arriver(tmp_path), await arriver(tmp_path)]
        await until(lambda: len(names(tmp_path)) == 3, what="both held")
        assert await held.reached() in {process.pid for process in processes}
        assert "passed" not in names(tmp_path)
    assert [await process.wait() for process in processes] == [0, 0]
    assert names(tmp_path) == ["passed"]
