"""One kept connection for Celery events: opening one for each event would cost more than hundreds of sessions can pay.

Synchronous; used from one thread. Above: `wakeups`. Knows kombu; does not know what the events mean.
"""

from celery import Celery
from celery.events import EventDispatcher
from kombu.connection import Connection

from celeriac.common.contract.json import JsonObject


class EventLine:
    """Sends events; the connection is opened by the first, and again by the first after a restart of the broker."""

    def __init__(self, app: Celery) -> None:
        """Opens nothing yet."""
        self._app = app
        self._connection: Connection | None = None
        self._dispatcher: EventDispatcher | None = None

    def send(self, worker: str, types: tuple[str, ...], fields: JsonObject) -> None:
        """Send one event of each type in the name of `worker`. Raises what kombu raises if a new connection fails
        too."""
        if self._dispatcher is not None:
            try:
                self._send(self._dispatcher, types, fields)
            except self._broken():
                self.close()
            else:
                return
        self._send(self._open(worker), types, fields)

    @staticmethod
    def _send(dispatcher: EventDispatcher, types: tuple[str, ...], fields: JsonObject) -> None:
        for kind in types:
            dispatcher.send(kind, **fields)

    def _open(self, worker: str) -> EventDispatcher:
        connection = self._app.connection_for_write()
        # Kept back events would be sent much later, as if they were new.
        self._dispatcher = EventDispatcher(connection, hostname=worker, buffer_while_offline=False)
        self._connection = connection
        return self._dispatcher

    def _broken(self) -> tuple[type[BaseException], ...]:
        assert self._connection is not None
        errors: tuple[type[BaseException], ...] = self._connection.connection_errors
        return errors

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection, self._dispatcher = self._connection, None, None
        if connection is not None:
            connection.release()  # type: ignore[no-untyped-call]  # kombu is typed in part
