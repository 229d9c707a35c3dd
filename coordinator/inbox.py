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
FULL_BLOCK_SECONDS = 1.0
"""The same while no session can be taken: bounds how late a session that ended makes room for the next."""
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
                room = self._sessions.room  # without it, hints about sessions are left to processes that have some
                seconds = BLOCK_SECONDS if room else FULL_BLOCK_SECONDS
                hinted = await hints.wait(self._process, sessions=room, timeout_s=seconds)
                if hinted is not None:
                    await self._act(hinted)
            except ServerUnreachable as error:
                log.warning("hints: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # a border: one bad record must not end the process and every session in it
                log.exception("hints")
                await asyncio.sleep(RETRY_SECONDS)

    async def _act(self, task_id: TaskId) -> None:
        if self._sessions.holdings.poke(task_id):
            return
        if ids.session_of(task_id) != task_id:
            await self._wake(task_id)
        elif self._sessions.room:
            self._sessions.claim(task_id)
        else:  # the last place was taken while this hint was waited for
            await self._dispatcher.substrate.hints.push_sessions(task_id)

    async def _wake(self, task_id: TaskId) -> None:
        """Send the wake-up of a task that nobody owns; of one that was handed over, only if no supervisor did."""
        records = self._dispatcher.substrate.records
        record = await records.find(task_id)
        if record is None or record.state.terminal or record.lease is not None:
            return
        if record.park is None:
            await self._dispatcher.wake(task_id, run=record.run, attempt=1)
        elif (due := await records.resend(task_id)) is not None:
            await self._dispatcher.wake(task_id, run=due.run, attempt=due.attempt)
