"""Which sessions are looked at (PROTOCOL 7): the list and the record are in different slots; the list comes first."""

from celeriac.common.contract.ids import TaskId, session_key
from celeriac.common.substrate.connection import Connection, mapping, text, texts
from celeriac.common.testing.points import point

GRACE_MS = 60_000
"""How long a listed session may lack its record: a client that lists and creates needs a few milliseconds."""


class Sessions:
    """The list of sessions, its versions, and the index by time."""

    def __init__(self, connection: Connection) -> None:
        """Over one connection."""
        self._connection = connection

    async def list(self, session: TaskId) -> int:
        """Have supervisors and coordinators look at this session; the version is what reopening it carries."""
        keys = self._connection.keys
        names = (keys.listed, keys.list_version, keys.by_time)
        answer = await self._connection.patiently(
            lambda: self._connection.run("list_session", names, session, session_key(session))
        )
        await point("list.after", session)
        return answer.count("version")

    async def listed(self) -> dict[TaskId, int]:
        """Session → version."""
        found = mapping(await self._connection.command("HGETALL", self._connection.keys.listed))
        return {TaskId(session): int(value.partition("@")[0]) for session, value in found.items()}

    async def page(self, offset: int, count: int) -> tuple[TaskId, ...]:
        """Sessions ever listed, newest first; one without a record is to be skipped."""
        if count <= 0:
            return ()
        last = offset + count - 1
        found = await self._connection.command("ZREVRANGE", self._connection.keys.by_time, offset, last)
        return tuple(TaskId(f"s-{key}") for key in texts(found))

    async def seal_and_unlist(self, session: TaskId, version: int) -> bool:
        """A sweeper's step: if the session has ended with everything below it, take the version it saw off the list.

        True if that happened. A reopening in between carries a newer version and stays listed."""
        await point("seal.before", session)
        answer = await self._connection.script("seal", session, {"version": version})
        await point("seal.after", session)
        return answer.status == "OK" and await self._unlist(session, version, 0)

    async def drop(self, session: TaskId, *, grace_ms: int = GRACE_MS) -> bool:
        """Take a session off the list that was listed longer than `grace_ms` ago and has no record; True if done."""
        version = (await self.listed_version(session)) or 0
        if await self._connection.command("EXISTS", self._connection.keys.task(session, "t")):
            return False
        return bool(version) and await self._unlist(session, version, grace_ms)

    async def listed_version(self, session: TaskId) -> int | None:
        """The version under which this session is listed, or None."""
        value = text(await self._connection.command("HGET", self._connection.keys.listed, session))
        return int(value.partition("@")[0]) if value else None

    async def _unlist(self, session: TaskId, version: int, age_ms: int) -> bool:
        keys = (self._connection.keys.listed,)
        answer = await self._connection.patiently(
            lambda: self._connection.run("unlist_session", keys, session, version, age_ms)
        )
        return answer.status == "OK"
