"""A job's replay file and its counters, kept with the session so that any process can answer from it (INTERFACES)."""

import orjson

from celeriac.common.contract.ids import TaskId
from celeriac.common.substrate.connection import Connection, mapping, number, text


class Replays:
    """The replay texts of all sessions."""

    def __init__(self, connection: Connection) -> None:
        """Over one connection."""
        self._connection = connection

    async def store(self, session: TaskId, content: str) -> None:
        """Keep the whole file."""
        await self._connection.command("SET", self._connection.keys.session(session, "replay"), content)

    async def load(self, session: TaskId) -> str | None:
        """The file, or None if this session has none."""
        found = await self._connection.command("GET", self._connection.keys.session(session, "replay"))
        return None if found is None else text(found)

    async def next_attempt(self, session: TaskId, path: str, run: int, turn: int) -> int:
        """Count one more attempt at this turn, across takeovers; the first is 1.

        A lost reply may count one attempt twice. Raises ServerUnreachable."""
        field = orjson.dumps([path, run, turn])
        return number(await self._connection.command("HINCRBY", self._counter(session), field, 1))

    async def attempts(self, session: TaskId) -> dict[tuple[str, int, int], int]:
        """(path, run, turn) → attempts counted so far."""
        found = mapping(await self._connection.command("HGETALL", self._counter(session)))
        keys = {field: orjson.loads(field) for field in found}
        return {(str(key[0]), int(key[1]), int(key[2])): int(found[field]) for field, key in keys.items()}

    def _counter(self, session: TaskId) -> str:
        return self._connection.keys.session(session, "replay:attempts")
