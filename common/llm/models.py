"""Which model client a session gets: its replay file, or the Messages API."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from celeriac.common.contract.ids import TaskId
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm.client import BadCredentials, ModelClient, ModelEvent, Request
from celeriac.common.llm.replay import ReplayModel, Script, parse_script
from celeriac.common.settings import LlmSettings
from celeriac.common.substrate.store import Substrate

SCRIPTS_KEPT = 64
"""Parsed replay files that a process keeps; a session's is parsed again when it was dropped."""


@dataclass(frozen=True, slots=True)
class SubstrateLedger:
    """Counts the attempts of one session durably, so that they go on counting after a takeover."""

    substrate: Substrate
    session: TaskId

    async def next_attempt(self, path: str, run: int, turn: int) -> int:
        """1 for the first time that this call is asked."""
        return await self.substrate.replays.next_attempt(self.session, path, run, turn)

    async def attempts(self) -> Mapping[tuple[str, int, int], int]:
        """All calls asked so far."""
        return await self.substrate.replays.attempts(self.session)


class ApiClient(ModelClient, Protocol):
    """A client that holds connections."""

    async def aclose(self) -> None:
        """Close them."""
        ...


class NoKey:
    """Stands where no key is set: sessions with a replay file work, any other call says what is missing."""

    def stream(self, request: Request, cancel: AbortNode) -> AsyncIterator[ModelEvent]:
        """Raises BadCredentials."""
        raise BadCredentials("no key for the model: set ANTHROPIC_API_KEY where coordinators and workers start")

    async def aclose(self) -> None:
        """Nothing is open."""


def api_client(settings: LlmSettings) -> ApiClient:
    """The Messages API client of a process; `NoKey` if there is neither a key nor a server of one's own."""
    if settings.api_key is None and settings.base_url is None:
        return NoKey()
    from celeriac.common.llm.anthropic_client import AnthropicClient  # noqa: PLC0415 - 3 s of CPU: only where used

    return AnthropicClient(
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key is not None else None,
        read_timeout=settings.read_timeout_seconds,
        standin=settings.standin,
    )


class Models:
    """Hands out clients; one API client is shared by all runs of a process."""

    def __init__(self, substrate: Substrate, api: ModelClient) -> None:
        """`api`: the client for sessions without a replay file."""
        self._substrate = substrate
        self._api = api
        self._scripts: dict[TaskId, Script | None] = {}

    async def of(self, session: TaskId) -> ModelClient:
        """The client for this session's tasks."""
        if session not in self._scripts:
            text = await self._substrate.replays.load(session)
            self._scripts[session] = None if text is None else parse_script(text, f"of {session}")
            while len(self._scripts) > SCRIPTS_KEPT:
                del self._scripts[next(iter(self._scripts))]
        script = self._scripts[session]
        return self._api if script is None else ReplayModel(script, SubstrateLedger(self._substrate, session))
