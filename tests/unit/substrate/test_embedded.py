"""The embedded server and its folder: data that outlives a start, and never two servers on it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.substrate import embedded
from celeriac.common.substrate.embedded import EmbeddedServer


async def test_a_folder_takes_one_server_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "FOLDER_SECONDS", 0.2)
    async with EmbeddedServer.start(tmp_path):
        with pytest.raises(ServerUnreachable, match="another server still runs"):
            async with EmbeddedServer.start(tmp_path):
                pass
    async with EmbeddedServer.start(tmp_path):
        pass


async def test_a_start_waits_for_a_server_that_is_just_ending(tmp_path: Path) -> None:
    async with EmbeddedServer.start(tmp_path) as first:
        async with Redis.from_url(first.url) as client:
            await client.set("kept", "yes")
        os.kill(first.pid, signal.SIGSTOP)
        second = EmbeddedServer.start(tmp_path)
        starting = asyncio.ensure_future(second.__aenter__())
        done, _ = await asyncio.wait({starting}, timeout=0.3)
        assert not done
        os.kill(first.pid, signal.SIGKILL)
        assert await first.ended() == -signal.SIGKILL
        server = await starting
        async with Redis.from_url(server.url) as client:
            assert await client.get("kept") == b"yes"
        await second.__aexit__(None, None, None)
