"""kombu's Redis transport, but a list entry that is no message is logged and dropped.

As it comes, one such entry ends the worker ("unrecoverable error"), and with it everything that the process runs.
"""

import logging
from queue import Empty

from kombu.transport import redis

log = logging.getLogger(__name__)


class Channel(redis.Channel):
    """Reads queues."""

    def _brpop_read(self, **options: object) -> bool:
        try:
            return bool(super()._brpop_read(**options))  # type: ignore[no-untyped-call]  # kombu is typed in part
        except (ValueError, TypeError, KeyError, AttributeError):
            log.exception("a queue held something that is no message; it was dropped")
            raise Empty from None


class Transport(redis.Transport):
    """Chosen by `celery_app` for redis:// and rediss:// URLs."""

    Channel = Channel
