import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable, UsageError
from celeriac.common.substrate.embedded import EmbeddedServer, find_binary, free_port
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.points import hold, point
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.substrate_kit import Kit, line
from celeriac.common.testing.waiting import until


async def test_an_unreachable_server_is_one_clear_error() -> None:
    substrate = Substrate.connect(f"redis://user:secret@127.0.0.1:{free_port()}/0")
    with pytest.raises(ServerUnreachable, match="no Redis answers at 127") as caught:
        await substrate.ping()
    assert "secret" not in str(caught.value)
    with pytest.raises(ServerUnreachable):
        await substrate.hints.wait("p", sessions=False, timeout_s=0.1)
    await substrate.aclose()


def test_a_bad_url_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="is not a Redis URL"):
        Substrate.connect("http://localhost")


async def test_a_cancelled_wait_leaves_no_answer_behind(server_kit: Kit) -> None:
    hints = server_kit.substrate.hints
    waiting = asyncio.create_task(hints.wait("p", sessions=False, timeout_s=30))
    await until(lambda: _blocked(server_kit))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await hints.push("p", ids.new_session())
    session = ids.new_session()
    await hints.push("q", session)
    assert await hints.wait("q", sessions=False, timeout_s=5) == session


async def _blocked(kit: Kit) -> bool:
    return bool((await kit.redis.info("clients"))["blocked_clients"])


async def test_no_cancellation_gets_lost_whenever_it_comes(server_kit: Kit) -> None:
    session = ids.new_session()

    async def ask_for_ever() -> None:
        while True:
            await server_kit.substrate.records.find(session)

    for ticks in range(80):
        asking = asyncio.create_task(ask_for_ever())
        for _ in range(ticks):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking], timeout=2)
        assert asking.cancelled(), f"a cancellation after {ticks} steps of the loop was swallowed"


async def test_writes_wait_for_a_server_that_restarts_and_happen_once(tmp_path: Path) -> None:
    with PrivateServer(tmp_path) as server:
        substrate = Substrate.connect(server.url)
        kit = Kit(substrate, substrate._connection.client, substrate._connection.keys)
        lease = await kit.owned_session()
        await lease.append([line("before")])
        server.kill()
        writing = asyncio.create_task(lease.append([line("after")]))
        sending = asyncio.create_task(substrate.inboxes.send_message(lease.task_id, "m", "hi", op="o", sender=None))
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(10):
            assert (await writing).tlen == 2
            await sending
        assert len(await substrate.transcripts.lines(lease.task_id)) == 2
        await substrate.aclose()


async def test_an_embedded_server_keeps_its_data_and_leaves_nothing_running(tmp_path: Path) -> None:
    async with EmbeddedServer.start(tmp_path / "server") as server:
        substrate = Substrate.connect(server.url)
        session = ids.new_session()
        await substrate.sessions.list(session)
        await substrate.aclose()
        pid = server.pid
    assert _gone(pid)
    async with EmbeddedServer.start(tmp_path / "server", socket=tmp_path / "s") as server:
        substrate = Substrate.connect(server.url)
        assert await substrate.sessions.page(0, 1) == (session,)
        await substrate.aclose()
        await server.stop()
        await server.stop()


_PARENT = """
import asyncio, pathlib, sys
from celeriac.common.substrate.embedded import EmbeddedServer
async def main():
    async with EmbeddedServer.start(pathlib.Path(sys.argv[1])) as server:
        print(server.pid, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_an_embedded_server_dies_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PARENT, str(tmp_path)]
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    await until(lambda: _gone(pid), what="the server is gone")


def _gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().split()[2] == "Z"


async def test_a_port_in_use_is_told(tmp_path: Path, private_server: PrivateServer) -> None:
    with pytest.raises(ServerUnreachable, match="ended at once"):
        async with EmbeddedServer.start(tmp_path, port=private_server.port):
            pass


@pytest.mark.parametrize(("version", "taken"), [("v=6.2.7", False), ("v=7.0.15", True), ("nothing", False)])
def test_a_server_on_the_path_is_taken_if_it_is_new_enough(tmp_path: Path, version: str, taken: bool) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho 'Redis server {version} sha=0'\n")
    program.chmod(0o755)
    assert (find_binary(str(tmp_path)) == program) is taken
    assert find_binary(str(tmp_path / "empty")).name == "valkey-server"


async def test_a_point_holds_the_first_arrival_of_its_subject_only() -> None:
    with hold("p", "a") as held:
        await point("p", "b")
        await point("q", "a")
        first = asyncio.create_task(point("p", "a"))
        await held.reached.wait()
        await point("p", "a")
        assert not first.done()
        held.release()
        await first
    await point("p", "a")
