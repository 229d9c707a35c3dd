"""Flower's Revoke and Terminate buttons: a stop on the substrate beside what Celery does.

Celery keeps a revocation in the memory of workers that are up: of a queued task it is lost when there is none, and
sessions have no message to revoke (CELERY.md).
"""

import secrets

from flower.api.control import TaskRevoke
from tornado import web

from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.contract.ids import TaskId
from celeriac.common.settings import Settings
from celeriac.common.substrate.opening import open_substrate
from celeriac.workers.entrypoints import task_of_message

ADDRESS = r"/api/task/revoke/(.+)"
"""As in Flower's own table."""


class Revoke(TaskRevoke):  # type: ignore[misc]  # flower has no types
    """Stops what is ours as well."""

    def initialize(self, settings: Settings) -> None:
        """`settings` name the server."""
        self._settings = settings

    @web.authenticated
    async def post(self, taskid: str) -> None:
        """Celery's part first: it refuses whoever may not revoke. 503 if the stop could not be stored."""
        await super().post(taskid)
        task_id = task_of_message(taskid)
        if task_id is None:
            return
        try:
            await self._stop(task_id)
        except ServerUnreachable as error:
            raise web.HTTPError(503, "%s", error) from error

    async def _stop(self, task_id: TaskId) -> None:
        substrate = open_substrate(self._settings)
        try:
            op = f"flower:{secrets.token_hex(8)}"
            await substrate.records.request_stop(task_id, kind="user", reason="stopped in Flower", op=op)
            await substrate.records.settle_stop(task_id)
        finally:
            await substrate.aclose()
