"""The Flower console in this process: our broker, loopback, a password, names that people can read (CELERY.md)."""

import logging
import secrets
import signal
import sys
from collections.abc import Callable

import flower.options  # noqa: F401 - defines the options that are set below
from flower.app import Flower
from flower.urls import settings as flower_settings
from tornado.options import options

from celeriac.common.queue.celery_app import make_app
from celeriac.common.settings import FlowerSettings, Settings
from celeriac.ops.flower import revoking
from celeriac.ops.flower.format import format_task
from celeriac.ops.ports import ADDRESS, PortTaken

MAX_TASKS = 10_000
"""Tasks kept in memory; Flower's default of 100,000 is for short ones."""
COLUMNS = "uuid,name,state,received,runtime,worker"
"""Kind and title stand in the name; there are no other arguments to tell."""


def main(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises PortTaken."""
    password = configure(settings.flower)
    console = Flower(
        capp=make_app(settings.redis.url or "", settings.redis.prefix), options=options, **quiet(flower_settings)
    )
    console.add_handlers(".*", [(revoking.ADDRESS, revoking.Revoke, {"settings": settings})])
    try:
        port = console.start_http_server()
    except OSError as error:
        raise PortTaken(settings.flower.port, error.strerror, "use --port") from error
    _announce(port, settings.flower, password)
    _serve(console.start, console.stop)


def configure(wanted: FlowerSettings) -> str:
    """Set Flower's options; returns the password in use."""
    password = wanted.password.get_secret_value() if wanted.password is not None else secrets.token_urlsafe(12)
    options.address = ADDRESS
    options.port = wanted.port
    options.basic_auth = [f"{wanted.user}:{password}"]
    options.max_tasks = MAX_TASKS
    options.tasks_columns = COLUMNS
    options.format_task = format_task
    options.natural_time = False
    return password


def quiet(given: dict[str, object]) -> dict[str, object]:
    """Flower's application settings with a cookie secret of this process; pages are not logged."""
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    return {**given, "cookie_secret": secrets.token_urlsafe(48), "debug": False}


def _announce(port: int, wanted: FlowerSettings, password: str) -> None:
    made_up = "" if wanted.password is not None else f", password {password} (made up for this start)"
    sys.stderr.write(f"celeriac flower ready: http://{ADDRESS}:{port} user {wanted.user}{made_up}\n")
    sys.stderr.flush()


def _serve(start: Callable[[], None], stop: Callable[[], None]) -> None:
    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    try:
        start()
    except (KeyboardInterrupt, SystemExit):
        logging.getLogger(__name__).info("the console ends")
    finally:
        stop()
