"""The substrate as one object: where records, transcripts, inboxes and events live. Composed here, used everywhere."""

from redis.asyncio import Redis

from celeriac.common.contract.ids import TaskId
from celeriac.common.substrate.connection import Connection
from celeriac.common.substrate.events import Events
from celeriac.common.substrate.hints import Hints
from celeriac.common.substrate.inbox import Inboxes
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.leases import Lease, Leases, Sides, Terms
from celeriac.common.substrate.lookout import Lookout
from celeriac.common.substrate.patience import PROCESS, Patience
from celeriac.common.substrate.questions import Questions
from celeriac.common.substrate.records import Records
from celeriac.common.substrate.replays import Replays
from celeriac.common.substrate.scripts import ScriptLibrary, packaged
from celeriac.common.substrate.sessions import Sessions
from celeriac.common.substrate.transcripts import Transcripts
from celeriac.common.substrate.types import ClaimRefusal

DEFAULT = Terms()
"""What the protocol names."""


class Substrate:
    """One process's view of one server. Made by `connect`, or by `over` for clients that exist already."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        """Wire the parts together; no I/O."""
        self._connection = connection
        self.lease_ms = terms.lease_ms
        self.hints = Hints(connection)
        self.sessions = Sessions(connection)
        self.records = Records(connection, self.sessions, self.hints, silent_ms=terms.silent_ms)
        self.inboxes = Inboxes(connection, self.sessions, self.hints)
        self.questions = Questions(connection, self.records, self.hints)
        self.transcripts = Transcripts(connection)
        self.events = Events(connection, self.transcripts)
        self.lookout = Lookout(connection)
        self.replays = Replays(connection)
        self._leases = Leases(Sides(connection, self.records, self.hints), terms)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        prefix: str = "",
        terms: Terms = DEFAULT,
        scripts: ScriptLibrary | None = None,
        patience: Patience = PROCESS,
    ) -> "Substrate":
        """Prepare for the server at `url`; no I/O. `scripts` is for tests. Raises UsageError for a bad URL."""
        connection = Connection.to(url, keys=Keys(prefix), scripts=scripts or packaged(), patience=patience)
        return cls(connection, terms)

    @classmethod
    def over(
        cls, client: Redis, blocking: Redis, *, prefix: str = "", terms: Terms, scripts: ScriptLibrary | None = None
    ) -> "Substrate":
        """Use these clients: an in-memory twin in tests. `blocking` must have no read timeout."""
        keys = Keys(prefix)
        connection = Connection(client, blocking, keys=keys, scripts=scripts or packaged(), where="these clients")
        return cls(connection, terms)

    async def ping(self) -> None:
        """One round trip. Raises ServerUnreachable, which says how to start a server."""
        await self._connection.ping()

    async def reach(self, seconds: float) -> None:
        """Wait up to `seconds` for a server that may just be restarting. Raises ServerUnreachable."""
        await self._connection.reach(seconds)

    @property
    def outages(self) -> int:
        """How often the server has stopped answering since this was made."""
        return self._connection.outage.count

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connection.aclose()

    async def claim(
        self, task_id: TaskId, run: int | None, *, process: str, nonce: str | None = None
    ) -> Lease | ClaimRefusal:
        """Take a task, or say why not (then drop the wake-up). `run` None: whichever is current.

        The same nonce again gets the same answer. Raises ServerUnreachable."""
        return await self._leases.claim(task_id, run, process=process, nonce=nonce)
