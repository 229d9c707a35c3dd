"""A model for tests: answers from a list, in order, with pauses that a test releases."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import text_block
from celeriac.common.contract.task import Usage
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.llm.client import BlockDone, Finished, ModelEvent, ModelFailure, Request, TextDelta


def tool_use(call_id: str, name: str, **tool_input: object) -> JsonObject:
    """A tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}  # type: ignore[dict-item]  # test data


@dataclass(slots=True)
class Scripted:
    """One answer: its blocks, how it ends, and what happens on the way."""

    blocks: Sequence[JsonObject]
    stop_reason: str | None = None
    """None: `tool_use` if a block asks for a tool, else `end_turn`."""
    failure: ModelFailure | None = None
    """Raised after the blocks, instead of an end."""
    gate: asyncio.Event | None = None
    """Waited for after the blocks, before the end."""


@dataclass(slots=True)
class ScriptedModel:
    """Implements ModelClient. Raises AssertionError when it is asked more often than it has answers."""

    answers: list[Scripted]
    requests: list[Request] = field(default_factory=list)

    async def stream(self, request: Request, cancel: AbortNode) -> AsyncIterator[ModelEvent]:
        """The next answer."""
        assert self.answers, f"the model was asked once more than the script knows: {request.messages[-1].content}"
        self.requests.append(request)
        answer = self.answers.pop(0)
        for index, block in enumerate(answer.blocks):
            if block.get("type") == "text":
                yield TextDelta(index, str(block["text"]))
            yield BlockDone(index, block)
        if answer.gate is not None and not await _opened(answer.gate, cancel):
            return
        if answer.failure is not None:
            raise answer.failure
        asked = any(block.get("type") == "tool_use" for block in answer.blocks)
        yield Finished(
            answer.stop_reason or ("tool_use" if asked else "end_turn"), Usage(input_tokens=10, output_tokens=5)
        )


async def _opened(gate: asyncio.Event, cancel: AbortNode) -> bool:
    """Wait for the gate; False if the run was aborted first."""
    waits = [asyncio.ensure_future(gate.wait()), asyncio.ensure_future(cancel.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return gate.is_set()


def says(text: str) -> Scripted:
    """An answer that is one text."""
    return Scripted([text_block(text)])
