"""A stored history as the API takes it back, whatever has happened to it (C94, C20, C110). Pure.

A history that this system wrote is legal, and comes back as it is. One with a line that cannot be read, or cut by
whoever wrote it, would be refused by every later call: calls and results that stand alone are mended here.
"""

from collections.abc import Sequence

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Line, Origin, text_block, tool_result_block

LOST_RESULT = "the result of this call is not kept; its effect is unknown"


def mended(lines: Sequence[Line], prompt: str) -> tuple[Line, ...]:
    """The lines with every result under its call, and no other call but in the last line without one.

    They begin with the user: with `prompt`, where the first line is gone."""
    kept: list[Line] = []
    for line in (*_beginning(lines, prompt), *lines):
        calls = _calls(kept[-1]) if kept else []
        content = _without_strays(line.content, calls)
        answered = {block["tool_use_id"] for block in content if block["type"] == "tool_result"}
        lost = tuple(tool_result_block(call, LOST_RESULT, is_error=True) for call in calls if call not in answered)
        if lost and line.role == "assistant":
            kept.append(line.model_copy(update={"role": "user", "origin": Origin.TOOLS, "content": lost, "metas": ()}))
        elif lost:
            content = (*lost, *content)
        if content:
            kept.append(line if content == line.content else line.model_copy(update={"content": content}))
    return tuple(kept)


def _beginning(lines: Sequence[Line], prompt: str) -> tuple[Line, ...]:
    if lines and lines[0].role == "user" and _without_strays(lines[0].content, []):
        return ()
    content = (text_block(prompt),)
    return (Line(run=1, turn=0, role="user", content=content, origin=Origin.PROMPT, seq=0, token="", time=0),)


def _calls(line: Line) -> list[str]:
    if line.role != "assistant":
        return []
    return [str(block["id"]) for block in line.content if block["type"] == "tool_use"]


def _without_strays(content: tuple[JsonObject, ...], calls: Sequence[str]) -> tuple[JsonObject, ...]:
    """The blocks but for blank texts and for results that answer none of the calls, or one of them again."""
    kept: list[JsonObject] = []
    open_calls = set(calls)
    for block in content:
        if block["type"] == "tool_result":
            if block["tool_use_id"] not in open_calls:
                continue
            open_calls.discard(str(block["tool_use_id"]))
        elif block["type"] == "text" and not str(block["text"]).strip():
            continue
        kept.append(block)
    return tuple(kept)
