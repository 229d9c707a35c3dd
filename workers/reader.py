"""The one blocked reader of a worker process: a hint makes the owner look at its record at once."""

import asyncio
import logging

from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.runtime.holdings import Holdings
from celeriac.common.substrate.store import Substrate

BLOCK_SECONDS = 5.0
RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


async def read_hints(substrate: Substrate, holdings: Holdings, process: str) -> None:
    """Read until cancelled. A lost hint costs at most a third of a lease."""
    while True:
        try:
            if (task_id := await substrate.hints.wait(process, sessions=False, timeout_s=BLOCK_SECONDS)) is not None:
                holdings.poke(task_id)
        except ServerUnreachable as error:
            log.warning("hints: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
        except Exception:  # a border: without this reader every stop would be heard late
            log.exception("hints")
            await asyncio.sleep(RETRY_SECONDS)
