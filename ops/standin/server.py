"""A strict Messages API server for tests, demos and benchmarks (DESIGN, stand-in): it follows a script."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from celeriac.common.llm.script import Script, parse_script
from celeriac.ops.standin.exchange import BODY_LIMIT_BYTES, Answers, Caller
from celeriac.ops.standin.handlers import ControlHandler, Holds, MessagesHandler, NotFoundHandler
from celeriac.ops.standin.journal import Journal
from celeriac.ops.standin.validator import WINDOW_TOKENS

PING_SECONDS = 5.0
"""Between two pings of a stream that has nothing to say: shorter than any client's read timeout."""
_ROOM = 4
"""The connection takes bodies so many times over the limit, in order to refuse them properly."""


class Standin:
    """One server. Tests use it inside their process; `serve` is for a process of its own."""

    def __init__(
        self,
        script: Script,
        log_path: Path | None = None,
        *,
        bodies_dir: Path | None = None,
        window: int = WINDOW_TOKENS,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        """`bodies_dir`: where every accepted request body is stored; `window` in tokens."""
        self.answers = Answers(script, window=window)
        self.journal = Journal(log_path)
        self.holds: Holds = {}
        self.ping_seconds = ping_seconds
        self._bodies_dir = bodies_dir
        self._bodies = 0
        self._server: HTTPServer | None = None
        self.url = ""
        """Where it listens; empty until started."""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; returns the base URL. Port 0 takes a free one. Raises OSError."""
        sockets = bind_sockets(port, host)
        services = {"services": self}
        self._server = HTTPServer(
            Application(
                [("/v1/messages", MessagesHandler, services), ("/_control/release", ControlHandler, services)],
                default_handler_class=NotFoundHandler,
                default_handler_args=services,
                log_function=_no_access_log,
            ),
            max_body_size=_ROOM * BODY_LIMIT_BYTES,
            max_buffer_size=_ROOM * BODY_LIMIT_BYTES,
        )
        self._server.add_sockets(sockets)
        self.url = f"http://{host}:{sockets[0].getsockname()[1]}"
        return self.url

    async def aclose(self) -> None:
        """Let held streams go, close all connections and the log."""
        self.release()
        if self._server is not None:
            self._server.stop()
            await self._server.close_all_connections()
            self._server = None
        self.journal.close()

    def release(self, path: str | None = None) -> int:
        """Let the streams that are held now go on, those of one path or all; returns how many."""
        found = [hold for hold, held in self.holds.items() if path in {None, held}]
        for hold in found:
            hold.set()
        return len(found)

    def unused(self) -> list[str]:
        """The script's lines that answered nothing so far."""
        return self.answers.unused()

    def keep_body(self, caller: Caller, attempt: int, body: bytes) -> None:
        """Store a request body as NUMBER-PATH-RUN-TURN-ATTEMPT.json."""
        if self._bodies_dir is None:
            return
        self._bodies += 1
        path, run, turn = caller.call or ("none", 0, 0)
        place = path.replace("/", "_").replace(":", "+")
        self._bodies_dir.mkdir(parents=True, exist_ok=True)
        (self._bodies_dir / f"{self._bodies:05d}-{place}-{run}-{turn}-{attempt}.json").write_bytes(body)


def _no_access_log(handler: RequestHandler) -> None:
    """The journal has everything."""


async def serve(
    script_text: str,
    source: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    log_path: Path | None = None,
    bodies_dir: Path | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve until cancelled. `ready` is told the base URL. Raises BadReplay before anything is opened, and OSError."""
    standin = Standin(parse_script(script_text, source), log_path, bodies_dir=bodies_dir)
    try:
        ready(await standin.start(host, port))
        await asyncio.Event().wait()
    finally:
        await standin.aclose()
