"""Ids of tool_use blocks, each of which counts once in a transcript (PROTOCOL, I7).

The API refuses a history with an id twice, and start marks, kept results and the ids of dispatched tasks hang on it.
Some servers send one again: a proxy that joins two attempts, a model that counts its calls anew in every answer.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

from celeriac.common.contract.json import JsonObject
from celeriac.common.llm.wire import dumps

REPEATED = "not run again: this same call, with the same id, was answered above"

_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}")
"""What the API takes back as an id."""


class CallIds:
    """The ids of one transcript."""

    def __init__(self) -> None:
        """Nothing known."""
        self._known: set[str] = set()
        self._cut: dict[str, bytes] = {}
        """Calls of the last answer, if it was cut."""

    def learn(self, blocks: Iterable[JsonObject], *, cut: bool) -> None:
        """These blocks are part of the transcript; `cut`: of an answer whose stream broke, which a retry may bring
        again."""
        calls = [block for block in blocks if block.get("type") == "tool_use"]
        self._known |= {str(block["id"]) for block in calls}
        self._cut = {str(block["id"]): _content(block) for block in calls} if cut else {}

    def repeats(self, block: JsonObject) -> bool:
        """Whether the answer before was cut and holds this very call. After a whole answer the same call is meant: a
        model may look twice, and some count their calls anew in every answer."""
        return self._cut.get(str(block.get("id"))) == _content(block)

    def settled(self, block: JsonObject, before: Sequence[JsonObject], place: str) -> JsonObject | None:
        """The tool_use as it joins the answer's blocks `before` it: None if one of them is the same; with another id,
        made of `place`, if its own is taken or is none."""
        own = block.get("id")
        twins = [other for other in before if other.get("type") == "tool_use" and other.get("id") == own]
        if any(_content(twin) == _content(block) for twin in twins):
            return None
        if isinstance(own, str) and _ID.fullmatch(own) and own not in self._known and not twins:
            return block
        return {**block, "id": f"toolu_{hashlib.sha256(place.encode()).hexdigest()[:24]}"}


def _content(block: JsonObject) -> bytes:
    return hashlib.sha256(dumps([block.get("name"), block.get("input")])).digest()
