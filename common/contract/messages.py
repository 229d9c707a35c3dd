"""Transcript lines (INTERFACES): what a task's history is made of. The model sees `role` and `content` only."""

from enum import StrEnum
from typing import Literal

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Stored
from celeriac.common.contract.text import clean_text

Role = Literal["user", "assistant"]


class Origin(StrEnum):
    """Who wrote a line."""

    PROMPT = "prompt"
    MODEL = "model"
    TOOLS = "tools"
    NOTIFICATION = "notification"
    MESSAGE = "message"
    MAIL = "mail"
    REMINDER = "reminder"
    SUMMARY = "summary"


class Draft(Stored):
    """The finished blocks of an answer in which a state-changing call has started (PROTOCOL 5)."""

    run: int
    turn: int
    blocks: tuple[JsonObject, ...]


class ToolMeta(Stored):
    """What a tool keeps of one result beside its text, so that a resumed run knows it: a file's stamp, the todos."""

    tool: str
    data: JsonObject


class NewLine(Stored):
    """A line to append; the substrate adds seq, token and time."""

    run: int
    turn: int
    role: Role
    content: tuple[JsonObject, ...]
    """Content blocks of the Messages API, never empty."""
    origin: Origin
    inbox_ids: tuple[str, ...] = ()
    """Inbox entries that this line consumed."""
    boundary: str | None = None
    metas: tuple[ToolMeta, ...] = ()
    """What tools keep of the results in this line, in call order."""


class Line(NewLine):
    """A stored line."""

    seq: int
    token: str
    time: int
    """Server time, epoch milliseconds."""


def text_block(text: str) -> JsonObject:
    """A text content block."""
    return {"type": "text", "text": clean_text(text)}


def tool_result_block(tool_use_id: str, content: str, *, is_error: bool = False) -> JsonObject:
    """A tool_result content block; a blank text becomes a short note, since an error without text is refused."""
    block: JsonObject = {
        "type": "tool_result",
        "tool_use_id": tool_use_id,
        "content": clean_text(content) if content.strip() else "(no output)",
    }
    return {**block, "is_error": True} if is_error else block
