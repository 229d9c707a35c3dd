"""Ties the commands of a task to its lease: each renewal is passed on, and nothing runs on when the run is over
here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.substrate.leases import Lease
from celeriac.workers.shell.commands import Commands


@asynccontextmanager
async def supervised(commands: Commands, lease: Lease) -> AsyncIterator[None]:
    """Beat with every renewal, counted from when it was sent; leave no command behind."""

    def beat() -> None:
        commands.beat(lease.task_id, lease.renewed_at)

    beat()
    lease.on_renewed.append(beat)
    try:
        yield
    finally:
        lease.on_renewed.remove(beat)
        # A lost lease: the next owner may be about to start, so there is no grace.
        await commands.kill_all(lease.task_id, at_once=lease.node.reason is AbortReason.LEASE_LOST)
        commands.forget(lease.task_id)
