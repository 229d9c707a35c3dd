"""From a wake-up to a run: claim, then the kind's own runner (DESIGN 3, hop 9)."""

import logging
from dataclasses import dataclass

from celeriac.common.contract import ids
from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.kinds import SERVED, Kind
from celeriac.common.queue.reports import Report, report_of
from celeriac.common.runtime.runner import Runner
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import ClaimRefusal
from celeriac.workers.kinds.agent import run_agent
from celeriac.workers.kinds.shell import run_shell
from celeriac.workers.shell.commands import Commands
from celeriac.workers.supervision import supervised

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """What the tasks of one worker process share."""

    runner: Runner
    commands: Commands


async def execute(worker: Worker, envelope: Envelope) -> Report:
    """Run what the message names, if it is ours to run; says what became of it, for Flower.

    A message is a wake-up: a duplicate, a late one, or one for an ended run finds its claim refused and is dropped.
    """
    runner = worker.runner
    if ids.kind_of(envelope.task_id) not in SERVED:
        return Report("NOT SERVED")
    if runner.holdings.closing:
        await runner.substrate.hints.push_sessions(envelope.task_id)  # a coordinator sends it again, to another worker
        return Report("CLOSING")
    if runner.holdings.poke(envelope.task_id):  # also while a run that lost its lease still unwinds here
        return Report(ClaimRefusal.BUSY.value)
    lease = await runner.substrate.claim(envelope.task_id, envelope.run, process=runner.process)
    if isinstance(lease, ClaimRefusal):
        log.info("%s run %d dropped: %s", envelope.task_id, envelope.run, lease)
        return Report(lease.value)
    with runner.holdings.hold(lease):  # until no command of this run is left, so that none of the next is mistaken
        async with supervised(worker.commands, lease):
            await _run(worker, lease)
    if lease.lost:  # the server may be away, and whatever it says is of another owner
        return Report(f"run {lease.run} goes on elsewhere")
    return report_of(await runner.substrate.records.get(lease.task_id), lease.run)


async def _run(worker: Worker, lease: Lease) -> None:
    record = await worker.runner.substrate.records.get(lease.task_id)
    if record.kind is Kind.SHELL:
        await run_shell(worker.runner, worker.commands, lease, record)
    else:
        await run_agent(worker.runner, worker.commands, lease, record)
