"""From a wake-up to a run: claim, then the kind's own runner (DESIGN 3, hop 9)."""

import logging
from dataclasses import dataclass

from celeriac.common.contract.envelope import Envelope
from celeriac.common.contract.kinds import Kind
from celeriac.common.runtime.runner import Runner
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


async def execute(worker: Worker, envelope: Envelope) -> str:
    """Run what the message names, if it is ours to run; the word that says what became of it.

    A message is a wake-up: a duplicate, a late one, or one for an ended run finds its claim refused and is dropped.
    """
    runner = worker.runner
    if runner.holdings.closing:
        return "CLOSING"
    lease = await runner.substrate.claim(envelope.task_id, envelope.run, process=runner.process)
    if isinstance(lease, ClaimRefusal):
        log.info("%s run %d dropped: %s", envelope.task_id, envelope.run, lease)
        return lease.value
    record = await runner.substrate.records.get(envelope.task_id)
    async with supervised(worker.commands, lease):
        match record.kind:
            case Kind.AGENT:
                await run_agent(runner, worker.commands, lease, record)
            case Kind.SHELL:
                await run_shell(runner, worker.commands, lease, record)
            case _:
                raise AssertionError(f"no worker serves {record.kind}; the coordinator never dispatches it")
    return "RAN"
