"""Live output tells what kind of progress there was: a token or a tool's output (INTERFACES, progress)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from celeriac.common.contract.json import JsonObject
from celeriac.common.runtime.output import LiveOutput


@dataclass
class Seen:
    """An emitter that keeps what it is given."""

    calls: list[JsonObject] = field(default_factory=list)

    async def emit(
        self,
        *,
        chunks: Sequence[str] = (),
        activities: Sequence[str] | None = None,
        token_at: bool = False,
        tool_at: bool = False,
        event: JsonObject | None = None,
    ) -> None:
        self.calls.append({"chunks": list(chunks), "token": token_at, "tool": tool_at})


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (["text"], {"chunks": ["text"], "token": True, "tool": False}),
        (["printed"], {"chunks": ["printed"], "token": False, "tool": True}),
        (["heard"], {"chunks": [], "token": True, "tool": False}),
        (["activity"], {"chunks": [], "token": False, "tool": True}),
        (["text", "printed"], {"chunks": ["textprinted"], "token": True, "tool": True}),
    ],
)
async def test_each_kind_of_progress_is_told_once(pieces: list[str], told: JsonObject) -> None:
    seen = Seen()
    output = LiveOutput(seen)
    for piece in pieces:
        match piece:
            case "text":
                output.text(piece)
            case "printed":
                output.printed(piece)
            case "activity":
                output.activity(piece)
            case _:
                output.heard()
    await output.flush()
    await output.flush()
    assert seen.calls == [told]
