"""Ids that tell their form and their session (PROTOCOL 1). Made only here, read only here.

A session's id is `s-` + S, where S is 13 characters of `[0-9a-z]`; a child's is its prefix, a dash, S and 13
characters of
hash(parent id, tool_use id). So every key can be computed from an id, and dispatching again makes nothing new.
"""

import hashlib
import re
import secrets
from typing import NewType

from celeriac.common.contract.errors import BadId
from celeriac.common.contract.kinds import Kind

TaskId = NewType("TaskId", str)
"""`s-…` or `a-…`, `r-…`, `sh-…`, `t-…`, `d-…`."""

SessionKey = NewType("SessionKey", str)
"""S: the 13 characters that every id of one session shares, and the hash tag of its Redis keys."""

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_PART_LENGTH = 13
_SHAPE = re.compile(r"(?P<kind>s|a|r|sh|t|d)-(?P<session>[0-9a-z]{13})(?P<child>[0-9a-z]{13})?")


def _digest(*parts: str) -> str:
    """13 base-36 characters of a hash over the parts, each length-prefixed so that no two lists collide."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])
    out = ""
    for _ in range(_PART_LENGTH):
        number, rest = divmod(number, len(_ALPHABET))
        out += _ALPHABET[rest]
    return out


def new_session() -> TaskId:
    """Draw a fresh session id."""
    return TaskId("s-" + "".join(secrets.choice(_ALPHABET) for _ in range(_PART_LENGTH)))


def session_for(tenant: str, idempotency_key: str) -> TaskId:
    """The one session id of this idempotency key: submitting twice finds the first (PROTOCOL 1)."""
    return TaskId("s-" + _digest("idempotency", tenant, idempotency_key))


def child(parent: TaskId, kind: Kind, tool_use_id: str) -> TaskId:
    """The id of the task that this stored tool_use of `parent` dispatches; always the same for the same call."""
    return TaskId(f"{kind.value}-{session_key(parent)}{_digest('child', parent, tool_use_id)}")


def parse(text: str) -> TaskId:
    """Check a user's text. Raises BadId."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None or (match["kind"] == Kind.SESSION.value) == (match["child"] is not None):
        raise BadId(text)
    return TaskId(match[0])


def kind_of(task_id: TaskId) -> Kind:
    """The form that the prefix tells."""
    return Kind(task_id.partition("-")[0])


def session_key(task_id: TaskId) -> SessionKey:
    """S of any id."""
    return SessionKey(task_id.partition("-")[2][:_PART_LENGTH])


def session_of(task_id: TaskId) -> TaskId:
    """The id of the session that this task belongs to (itself for a session)."""
    return TaskId(f"s-{session_key(task_id)}")


def operation(task_id: TaskId, tool_use_id: str) -> str:
    """The op id of a request that a tool call makes: repeated after a crash it finds its stored answer (PROTOCOL 4)."""
    return _digest("op", task_id, tool_use_id)


def question(task_id: TaskId, tool_use_id: str) -> str:
    """The id of what this tool call asks a person: asked again after a crash it finds what is stored (PROTOCOL 3)."""
    return _digest("question", task_id, tool_use_id)


def nonce() -> str:
    """A fresh random token part for one claim or one request."""
    return secrets.token_hex(8)
