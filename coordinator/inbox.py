"""The one blocked reader of a coordinator process: each hint becomes a look at an inbox, a claim, or a wake-up
(PROTOCOL 1).

A lost hint costs at most a third of a lease or one scan of the supervisor; nothing depends on one.
"""

import asyncio
import logging

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.coordinator.dispatch import Dispatcher
from celeriac.coordinator.sessions import Sessions

BLOCK_SECONDS = 5.0
"""How long one blocked read lasts: bounds how late a closing process notices."""
RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class HintReader:
    """Reads hints for this process and for sessions without an owner."""

    def __init__(self, sessions: Sessions, dispatcher: Dispatcher, process: str) -> None:
        """`process` is the name that leases of this process carry."""
        self._sessions = sessions
        self._dispatcher = dispatcher
        self._process = process

    async def run(self) -> None:
        """Read until cancelled; a server that is away is asked again."""
        hints = self._dispatcher.substrate.hints
        while True:
            try:
                hinted = await hints.wait(self._process, sessions=True, timeout_s=BLOCK_SECONDS)
                if hinted is not None:
                    await self._act(hinted)
            except ServerUnreachable as error:
                log.warning("hints: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # a border: one bad record must not end the process and every session in it
                log.exception("hints")
                await asyncio.sleep(RETRY_SECONDS)

    async def _act(self, task_id: TaskId) -> None:
        holdings = self._sessions.holdings
        if holdings.poke(task_id):
            return
        if ids.session_of(task_id) == task_id:
            await self._sessions.claim(task_id)
            return
        record = await self._dispatcher.substrate.records.find(task_id)
        if record is not None and not record.state.terminal and record.lease is None and record.park is None:
            await self._dispatcher.wake(task_id, run=record.run, attempt=1)
