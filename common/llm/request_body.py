"""A request as bytes: joined from what was encoded once, with the cache breakpoints set (MODEL_API, Cache). Pure.

Only this module sets cache_control. The prompt prefix stays the same bytes from call to call: only messages that carry
a breakpoint are encoded again.
"""

from collections.abc import Sequence

from celeriac.common.contract.json import JsonObject
from celeriac.common.llm.client import ApiMessage, BadRequest, Request
from celeriac.common.llm.wire import dumps

LOOKBACK_BLOCKS = 20
"""How far the API looks back from a breakpoint for an earlier one (MODEL_API, Cache)."""
PARALLEL_RESULTS = 10
"""From so many results on, the last turn may be longer than the lookback and gets a breakpoint inside."""
MARKED = 2
"""Messages at the end that may carry a mark: the last one, and the one before for a long last turn."""
_EPHEMERAL: JsonObject = {"type": "ephemeral"}
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})


def encode(request: Request, *, stream: bool = True) -> bytes:
    """The body for /v1/messages. Raises BadRequest for what no server would take."""
    if not request.messages or not _may_end(request.messages[-1]):
        raise BadRequest("a request must end with a user message; nothing was sent")
    parts: list[bytes | bytearray] = [
        b'{"model":%s,"max_tokens":%d,"stream":%s' % (dumps(request.model), request.max_tokens, dumps(stream)),
        b',"system":' + dumps(list(_system(request.system))) if request.system else b"",
        b',"tools":' + request.tools_wire if request.tools_wire.strip() not in {b"", b"[]"} else b"",
        b',"messages":[',
        request.joined.of(request.messages[:-MARKED]),
        b",".join(_marked_wires(request.messages)),
        b"]}",
    ]
    return b"".join(parts)


def _may_end(message: ApiMessage) -> bool:
    """A user message, or an answer that the server paused while its own tools run: it is sent back unchanged."""
    return message.role == "user" or any(block.get("type") == "server_tool_use" for block in message.content)


def _system(blocks: tuple[JsonObject, ...]) -> list[JsonObject]:
    """Marks on the last block, which ends the whole, and on the one before it, which ends the stable part."""
    return [_marked(block) if position >= len(blocks) - 2 else block for position, block in enumerate(blocks)]


def _marked_wires(messages: Sequence[ApiMessage]) -> list[bytes]:
    """The bytes of the last messages; those that get a mark are made anew."""
    messages = messages[-MARKED:]
    wires = [message.wire for message in messages]
    marks: dict[int, set[int]] = {}
    for message, block in _marks(messages):
        marks.setdefault(message, set()).add(block)
    for number, blocks in marks.items():
        content = messages[number].content
        marked = [_marked(block) if position in blocks else block for position, block in enumerate(content)]
        wires[number] = dumps({"role": messages[number].role, "content": list(marked)})
    return wires


def _marks(messages: Sequence[ApiMessage]) -> list[tuple[int, int]]:
    """Where the marks go, as (message, block): the last block that can carry one, and one inside a long last turn."""
    last = len(messages) - 1
    tail = [(last, position) for position in range(len(messages[last].content))]
    marks = _last_markable(messages, tail)
    results = sum(block.get("type") == "tool_result" for block in messages[last].content)
    if results >= PARALLEL_RESULTS:
        before = [] if last == 0 else [(last - 1, position) for position in range(len(messages[last - 1].content))]
        reach = min(LOOKBACK_BLOCKS - 1, len(before))
        marks += _last_markable(messages, [*before, *tail][: reach + 1])
    return marks


def _last_markable(messages: Sequence[ApiMessage], places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    for message, block in reversed(places):
        if messages[message].content[block].get("type") not in _UNMARKABLE:
            return [(message, block)]
    return []


def _marked(block: JsonObject) -> JsonObject:
    return {**block, "cache_control": _EPHEMERAL}
