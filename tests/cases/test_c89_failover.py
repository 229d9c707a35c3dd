"""C89: after a failover the old master only refuses writes; whoever still talks to it must find the new one, and what
was refused meanwhile is repeated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from celeriac.common.contract import ids
from celeriac.common.contract.task import SessionSpec, State
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.substrate.types import SendStatus
from celeriac.common.testing.cluster import Cluster, cluster
from celeriac.common.testing.forwarder import Forwarder, forwarder
from celeriac.common.testing.replies import dispatch, reply, say, script, use
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.substrate_kit import DONE, line, new_task
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos.checker import check
from celeriac.ops.chaos.crowd import Load, submit
from celeriac.ops.chaos.watched import Watched


class Pair:
    """A master, its replica, and the address that leads to whichever is the master."""

    def __init__(self, master: PrivateServer, replica: PrivateServer, address: Forwarder) -> None:
        self.master, self.replica, self.address = master, replica, address

    async def linked(self) -> None:
        with Redis.from_url(self.replica.url) as replica:
            replica.replicaof("127.0.0.1", str(self.master.port))

            def is_up() -> bool:
                return bool(replica.info("replication")["master_link_status"] == "up")

            await until(is_up, what="the replica's link")

    async def fail_over(self) -> None:
        """The replica is promoted when it has everything; the old master becomes its replica and stays up."""
        with Redis.from_url(self.master.url) as old, Redis.from_url(self.replica.url) as new:
            old.config_set("min-replicas-to-write", 2)  # nothing more is accepted, so nothing can be lost

            def has_all() -> bool:
                ours, theirs = old.info("replication"), new.info("replication")
                return bool(ours["master_repl_offset"] == theirs["slave_repl_offset"])

            await until(has_all, what="the replica to catch up")
            new.replicaof("NO", "ONE")
            self.address.port = self.replica.port
            old.replicaof("127.0.0.1", str(self.replica.port))


@asynccontextmanager
async def pair_with(master: PrivateServer, folder: Path) -> AsyncIterator[Pair]:
    with PrivateServer(folder / "replica") as replica:
        async with forwarder(master.port) as address:
            made = Pair(master, replica, address)
            await made.linked()
            yield made


COMMAND = "echo begun >> effect.txt; until [ -e go ]; do sleep 0.1; done; echo done >> effect.txt"
SCRIPT = script(
    reply("s", 1, dispatch("a", prompt="Run it."), dispatch("sh", command=COMMAND)),
    *(reply("s", turn, say("Waiting.")) for turn in (2, 3, 4)),
    reply("s/1.0", 1, use("Bash", command=COMMAND.replace("effect", "effect2"))),
    reply("s/1.0", 2, say("It was run.")),
)


@pytest.mark.cluster
async def test_tasks_that_run_meanwhile_end_and_new_ones_begin(system: Cluster, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    await asyncio.to_thread(workspace.mkdir)
    async with pair_with(system.server, tmp_path) as pair:
        system.environ["CELERIAC_REDIS_URL"] = pair.address.url
        await asyncio.gather(system.coordinator(), system.worker())
        rules = (f"Bash({COMMAND})", f"Bash({COMMAND.replace('effect', 'effect2')})")
        options = JobOptions(cwd=workspace, allowed_tools=rules, replay=SCRIPT)
        async with Client.connect(pair.address.url) as client:
            watched = Watched(client, await client.submit("Go.", options))
            for name in ("effect.txt", "effect2.txt"):
                await until((workspace / name).exists, what="a command's first line")
            await pair.fail_over()
            (workspace / "go").touch()
            assert (await watched.end()).state is State.COMPLETED
            again = Watched(client, await client.submit("Again.", options))
            assert (await again.end()).state is State.COMPLETED
            for each in (watched, again):
                told = await each.notified()
                assert [one.status for one in told] == ["completed", "completed"]
                assert len({one.task_id for one in told}) == 2
    for name in ("effect.txt", "effect2.txt"):
        assert (workspace / name).read_text().split() == ["begun", "done"] * 2
    assert not any("Traceback" in member.said() for member in system.members.values())


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    with PrivateServer(tmp_path / "master") as master:
        async with pair_with(master, tmp_path) as made:
            yield made


async def test_an_owners_writes_reach_the_new_master(pair: Pair) -> None:
    substrate = Substrate.connect(pair.address.url)
    task_id = ids.new_session()
    await substrate.records.create(new_task(task_id, None, SessionSpec(prompt="x")), parent_token=None)
    lease = await substrate.claim(task_id, None, process="test")
    assert isinstance(lease, Lease)
    async with asyncio.timeout(30):
        await lease.append([line("before")])
        await pair.fail_over()
        await lease.append([line("after")])
        await lease.renew()
        assert await substrate.sessions.page(0, 10) == (task_id,)
        await lease.finish(DONE)
        record = await substrate.records.get(task_id)
    assert (record.state, record.tlen) == (State.COMPLETED, 2)
    await substrate.aclose()


async def test_requests_and_blocked_reads_do_too(pair: Pair) -> None:
    async with Client.connect(pair.address.url) as client:
        job = await client.submit("x", JobOptions(cwd=Path("/")))
        async with asyncio.timeout(30):
            following = asyncio.ensure_future(job.result())
            await pair.fail_over()
            await job.send("more")
            assert (await job.stop("enough"))[0].verdict == "stopped"
            assert (await following).state is State.STOPPED
            assert (await client.submit("y", JobOptions(cwd=Path("/")))).id != job.id


@pytest.mark.cluster
@pytest.mark.parametrize("refusal", ["a replica", "no replicas"])
async def test_processes_outlive_a_server_that_only_refuses_to_write(
    system: Cluster, tmp_path: Path, refusal: str
) -> None:
    coordinator, worker = await asyncio.gather(system.coordinator(), system.worker())
    (tmp_path / "go").touch()
    with Redis.from_url(system.url) as redis:
        if refusal == "a replica":
            redis.replicaof("127.0.0.1", "1")
        else:
            redis.config_set("min-replicas-to-write", 1)
            redis.client_kill_filter(_type="normal", skipme=True)  # a read that is blocked already would go on
        await until(lambda: "Connection to broker lost" in worker.said(), seconds=30, what="the worker to notice")
        await until(lambda: int(redis.info("stats")["total_error_replies"]) > 8, seconds=30, what="many refusals")
        redis.replicaof("NO", "ONE")
        redis.config_set("min-replicas-to-write", 0)
    rules = (f"Bash({COMMAND})", f"Bash({COMMAND.replace('effect', 'effect2')})")
    async with Client.connect(system.url) as client:
        options = JobOptions(cwd=tmp_path, allowed_tools=rules, replay=SCRIPT)
        assert (await Watched(client, await client.submit("Go.", options)).end()).state is State.COMPLETED
    assert coordinator.process.poll() is None and worker.process.poll() is None
    assert not any("Traceback" in member.said() for member in (coordinator, worker))


LOAD = Load(agents=3, shells=2, pace_ms=500, shell_seconds=6.0)
LONG_LEASE_SECONDS = 9.0
"""Owners act for two thirds of it: the few seconds below cost nobody a lease, so that no command is cut off."""
READ_ONLY_SECONDS = 2.5


async def changed_roles(old: PrivateServer, new: PrivateServer) -> None:
    """A failover that was asked for: the new one is master with all that the old one had, and the old one follows."""
    async with AsyncRedis.from_url(old.url, protocol=2) as server:
        await server.execute_command("FAILOVER", "TO", "127.0.0.1", str(new.port))  # type: ignore[no-untyped-call]

        async def follows() -> bool:
            state = await server.info("replication")
            return (state["role"], state.get("master_link_status")) == ("slave", "up")

        await until(follows, what="the failover")


@pytest.mark.cluster
async def test_a_master_that_is_a_replica_for_seconds_costs_no_lease_and_no_command(tmp_path: Path) -> None:
    """And a message that was sent meanwhile arrives. Everything that is left is looked at."""
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(cluster(tmp_path, lease_seconds=LONG_LEASE_SECONDS))
        pair = await stack.enter_async_context(pair_with(system.server, tmp_path))
        await system.standin(LOAD.script())
        await asyncio.gather(system.coordinator(), system.worker())
        client = await stack.enter_async_context(Client.connect(system.url))
        redis = await stack.enter_async_context(AsyncRedis.from_url(system.url, protocol=2))
        crowd = await submit(system, client, redis, LOAD, jobs=1)

        async def under_way() -> bool:
            return len(await crowd.running()) == LOAD.tasks

        await until(under_way, seconds=40, what="all tasks at work")
        await changed_roles(pair.master, pair.replica)
        sending = asyncio.create_task(crowd.jobs[0].send("A note meanwhile."))
        done, _ = await asyncio.wait([sending], timeout=READ_ONLY_SECONDS)
        assert not done
        await changed_roles(pair.replica, pair.master)
        assert (await sending).status is SendStatus.QUEUED
        await crowd.end(seconds=60)
        assert await check(crowd) == []
        records = await crowd.tasks()
        assert {record.state for record in records} == {State.COMPLETED}
        assert sum(record.fence - record.run for record in records) == 0, "a lease was lost"
        for member in system.members.values():
            assert member.process.poll() is None, f"{member.name} has ended: {member.said()[-2000:]}"
