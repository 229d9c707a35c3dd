"""kombu's Redis transport, but a list entry that is no message is logged and dropped, and a server that refuses is
connected to anew.

As it comes, one such entry or refusal ends the worker ("unrecoverable error"), and with it everything that the process
runs. A master that has become a replica refuses on the connections that it keeps; new ones find its successor (C89).
"""

import logging
import time
from collections import deque
from queue import Empty

from kombu.transport import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

log = logging.getLogger(__name__)

HASTY_SECONDS = 2.0
HASTY_CONNECTIONS = 6
"""More connections in that time are made by one who connects, is refused and connects again; a start makes three."""
PAUSE_SECONDS = 0.5
"""How long that one is held up; nothing is lost by it, for no message can come."""


class Channel(redis.Channel):
    """Reads queues."""

    def _brpop_read(self, **options: object) -> bool:
        try:
            return bool(super()._brpop_read(**options))  # type: ignore[no-untyped-call]  # kombu is typed in part
        except (ValueError, TypeError, KeyError, AttributeError):
            log.exception("a queue held something that is no message; it was dropped")
            raise Empty from None
        except ResponseError as error:
            log.warning("the server refuses to give messages, it is connected to anew: %s", error)
            self.client.connection.disconnect()
            raise RedisConnectionError(str(error)) from error


class Transport(redis.Transport):
    """Chosen by `celery_app` for redis:// and rediss:// URLs."""

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, ResponseError)

    _made: deque[float] = deque(maxlen=HASTY_CONNECTIONS)
    """When the last connections of this process were made."""

    def establish_connection(self) -> object:
        """Connect; slowly, where a server takes connections and refuses what is done with them."""
        now = time.monotonic()
        if len(self._made) == HASTY_CONNECTIONS and now - self._made[0] < HASTY_SECONDS:
            time.sleep(PAUSE_SECONDS)
        self._made.append(now)
        return super().establish_connection()  # type: ignore[no-untyped-call]  # kombu is typed in part
