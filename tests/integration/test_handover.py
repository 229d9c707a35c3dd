"""Processes that are told to end hand over what they run: queued, not failed, and not counted (issue A2)."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.testing.cluster import Cluster, Member, cluster
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions
from celeriac.ops.chaos import handover
from celeriac.ops.chaos.crowd import Load
from celeriac.ops.chaos.watched import Watched
from celeriac.workers.kinds.shell import CLOSED

EXIT_SECONDS = 10.0
"""A coordinator has handed over by then (issue A2); so has a worker whose commands end in time."""


@pytest.mark.cluster
async def test_a_coordinator_and_a_worker_hand_over_while_agents_stream(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    outcome = await handover.play(tmp_path)
    for told in outcome.hand_overs:
        record_property("hand-over", str(told))
        assert told.runs and told.exit_code == 0
        assert told.moved_s < handover.LEASE_SECONDS, "that was no hand-over: the leases ran out"
        assert told.exit_s < EXIT_SECONDS + handover.LOAD.shell_seconds
    assert (outcome.faults, outcome.attempts) == ((), 0)


ONE_COMMAND = Load(agents=0, shells=1, shell_seconds=60)
ONE_AGENT = Load(agents=1)


@asynccontextmanager
async def closing_worker(folder: Path, grace_seconds: float) -> AsyncIterator[tuple[Cluster, Member, Watched]]:
    """A worker that was told to end while its one command, which takes a minute, runs."""
    async with cluster(folder) as system, Client.connect(system.url) as client:
        system.environ["CELERIAC_WORKER_SOFT_SHUTDOWN_SECONDS"] = str(grace_seconds)
        await system.coordinator()
        worker = await system.worker()
        system.refuse_shams()
        job = await client.submit("Do it.", options(folder, ONE_COMMAND))
        await until((folder / "effects.txt").exists, what="the command's start")
        worker.signal(signal.SIGTERM)
        await until(lambda: "Warm shutdown" in worker.said(), what="the signal to be heard")
        yield system, worker, Watched(client, job)


def options(folder: Path, load: Load) -> JobOptions:
    return JobOptions(cwd=folder, allowed_tools=load.rules, replay=load.script())


async def ended(worker: Member, job: Watched) -> Record:
    await until(lambda: worker.process.poll() is not None, what="the worker's end")
    assert worker.process.returncode == 0
    assert (await job.end()).state is State.COMPLETED
    return await job.task(Kind.SHELL)


def reason(record: Record) -> tuple[State, str]:
    assert record.outcome is not None
    return record.state, record.outcome.reason


@pytest.mark.cluster
async def test_a_command_that_outlasts_the_grace_fails_with_its_reason(tmp_path: Path) -> None:
    async with closing_worker(tmp_path, 2.0) as (_, worker, job):
        assert worker.process.poll() is None
        assert reason(await ended(worker, job)) == (State.FAILED, CLOSED)


@pytest.mark.cluster
async def test_a_worker_that_is_told_twice_ends_at_once(tmp_path: Path) -> None:
    async with closing_worker(tmp_path, 60.0) as (_, worker, job):
        worker.signal(signal.SIGTERM)
        assert reason(await ended(worker, job)) == (State.FAILED, CLOSED)


@pytest.mark.cluster
async def test_a_closing_worker_keeps_no_work_from_others(tmp_path: Path) -> None:
    async with closing_worker(tmp_path, 60.0) as (system, worker, job):
        await system.worker("worker2")
        other = await job.client.submit("Do it.", options(tmp_path, ONE_AGENT))
        assert (await Watched(job.client, other).end()).state is State.COMPLETED
        agent = await Watched(job.client, other).task(Kind.AGENT)
        assert agent.times.started - agent.times.created < 5000
        assert worker.process.poll() is None and (await job.task(Kind.SHELL)).lease is not None
        await job.job.stop()  # which does not wait for the grace either
        await until(lambda: worker.process.poll() == 0, what="the worker's end")
