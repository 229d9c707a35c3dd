"""One session: a claimed job, run by the loop with the coordinator's four tools."""

import asyncio
import logging
from dataclasses import dataclass

from celeriac.common.context.assemble import TextSections
from celeriac.common.contract.task import Record, SessionSpec
from celeriac.common.queue.wakeups import WakeUps
from celeriac.common.runtime.runner import Assignment, Runner, policy_of
from celeriac.common.substrate.leases import Lease
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.prompt import text
from celeriac.coordinator.tools import Session as ToolSession
from celeriac.coordinator.tools import session_toolbox

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """Runs claimed sessions of one coordinator process."""

    runner: Runner
    dispatcher: Dispatcher
    wakeups: WakeUps

    async def run(self, lease: Lease) -> None:
        """Run until the session ends, parks or is lost."""
        records = self.runner.substrate.records
        record = await records.get(lease.task_id)
        async with asyncio.TaskGroup() as beside:  # the lease is kept alive meanwhile, whatever the broker does
            beside.create_task(self.wakeups.session_started(record, self.runner.process))
            await self.runner.run(lease, record, lambda current: self._assignment(lease, current))
        if lease.lost:
            return
        ended = await records.get(lease.task_id)
        if ended.outcome is not None and ended.run == lease.run:
            await self.wakeups.session_ended(ended, self.runner.process)

    def _assignment(self, lease: Lease, record: Record) -> Assignment:
        assert isinstance(record.spec, SessionSpec)
        settings = self.runner.settings
        tools = ToolSession(record, lease, policy_of(record, settings), self.runner.permissions, self.dispatcher)
        return Assignment(
            prompt=record.spec.prompt,
            model=record.spec.model,
            effort=record.spec.effort,
            fallback_model=record.spec.fallback_model,
            toolbox=session_toolbox(tools),
            sections=TextSections(text("system")),
            default_turns=settings.limits.session_turns,
        )
