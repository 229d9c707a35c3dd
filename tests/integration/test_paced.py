"""A tool starts while its answer still streams (SPEC 5, event 6), over real HTTP."""

import asyncio
from pathlib import Path

import pytest

from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions

COMMAND = "touch started"
LONG_TEXT = "and this is said slowly, word by word, while the command has long since run. " * 6


@pytest.mark.cluster
async def test_a_tool_starts_a_second_before_its_message_ends(system: Cluster, tmp_path: Path) -> None:
    paced = reply("s/1.0", 1, use("Bash", command=COMMAND), say(LONG_TEXT), pace_ms=250)
    await system.standin(
        script(
            reply("s", 1, dispatch("a", prompt="Run it.")),
            reply("s", 2, say("Waiting.")),
            paced,
            reply("s/1.0", 2, say("Run.")),
            reply("s", 3, say("Done.")),
        )
    )
    await asyncio.gather(system.coordinator(), system.worker())
    async with Client.connect(system.url) as client:
        job = await client.submit("Do it.", JobOptions(cwd=tmp_path, allowed_tools=(f"Bash({COMMAND})",)))
        await until((tmp_path / "started").exists, what="the command")
        started = (tmp_path / "started").stat().st_mtime
        async with asyncio.timeout(30):
            assert (await job.result()).result == "Done."
    ends = [
        float(str(entry["at"]))
        for entry in system.requests()
        if entry["event"] == "end" and (entry["path"], entry["turn"]) == ("s/1.0", 1)
    ]
    assert len(ends) == 1 and ends[0] - started >= 1.0
