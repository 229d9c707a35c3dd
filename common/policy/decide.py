"""Permissions: the seam, and the decision in the order of SPEC 6.

Hard deny, deny rules, plan mode, ask rules, allow rules, the built-in ask list, the mode's default. Deny always wins;
what
cannot be decided is asked, and nobody there means denied.
"""

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Mode
from celeriac.common.contract.tool_names import (
    BASH,
    COORDINATOR_MODE_ALLOWED,
    EDIT,
    SYNTHETIC_OUTPUT,
    TODO_WRITE,
    WRITE,
)
from celeriac.common.policy.hard_deny import hard_denied
from celeriac.common.policy.rules import Rule, parse_rule

_FREE = COORDINATOR_MODE_ALLOWED | {TODO_WRITE, SYNTHETIC_OUTPUT, "Skill", "ToolSearch"}
"""No rule is needed for these, in any mode (SPEC 6)."""
_EDITS = frozenset({EDIT, WRITE})
_PATH_FIELDS = ("file_path", "path")


@dataclass(frozen=True, slots=True)
class Subject:
    """The call that is judged, after all rewrites."""

    tool: str
    input: JsonObject
    read_only: bool
    workspace: Path | None = None

    @property
    def command(self) -> str:
        """The command line, for Bash."""
        return str(self.input.get("command", ""))

    @property
    def path(self) -> str | None:
        """The path it names, relative to the workspace; None if it leads out of it."""
        named = next((str(self.input[name]) for name in _PATH_FIELDS if self.input.get(name) is not None), ".")
        root = str(self.workspace or "/")
        full = posixpath.normpath(posixpath.join(root, named))
        if full != root and not full.startswith(root.rstrip("/") + "/"):
            return None
        return posixpath.relpath(full, root)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one task."""

    mode: Mode
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Allow:
    """It may run."""


@dataclass(frozen=True, slots=True)
class Deny:
    """It may not; `rule` is what decided."""

    reason: str
    rule: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A person must decide; nobody there = denied."""

    question: str


Decision = Allow | Deny | Ask


class Permissions(Protocol):
    """Judges calls."""

    def decide(self, subject: Subject, policy: Policy) -> Decision:
        """Judge one call."""
        ...


class StandardPermissions:
    """The order of SPEC 6. Raises UsageError for a rule that cannot be read."""

    def decide(self, subject: Subject, policy: Policy) -> Decision:
        """Judge one call."""
        if subject.tool == BASH and (why := hard_denied(subject.command)) is not None:
            return Deny(f"never allowed: {why}", "hard deny")
        if (rule := _covering(policy.deny, subject)) is not None:
            return Deny(f"rule {rule.text} denies it", rule.text)
        if subject.tool in _FREE:
            return Allow()
        if policy.mode is Mode.PLAN and not subject.read_only:
            return Deny("plan mode: nothing is changed before the plan is approved", "plan")
        return _asked(subject, policy) or _allowed(subject, policy) or _default(subject, policy)


def _covering(rules: tuple[str, ...], subject: Subject) -> Rule | None:
    about = subject.command if subject.tool == BASH else (subject.path or "")
    return next((rule for rule in map(parse_rule, rules) if rule.covers(subject.tool, about)), None)


def _asked(subject: Subject, policy: Policy) -> Decision | None:
    rule = _covering(policy.ask, subject)
    if rule is None or policy.mode is Mode.BYPASS:
        return None
    if policy.mode is Mode.DONT_ASK:
        return Deny(f"rule {rule.text} would ask, and nobody is asked in mode dontAsk", rule.text)
    return Ask(f"rule {rule.text} asks about it")


def _allowed(subject: Subject, policy: Policy) -> Decision | None:
    if _covering(policy.allow, subject) is not None:
        return Allow()
    return Allow() if policy.mode is Mode.BYPASS else None


def _default(subject: Subject, policy: Policy) -> Decision:
    inside = subject.tool != BASH and subject.path is not None
    if inside and (subject.read_only or (policy.mode is Mode.ACCEPT_EDITS and subject.tool in _EDITS)):
        return Allow()
    what = f"{subject.tool}({subject.command})" if subject.tool == BASH else subject.tool
    where = "" if inside or subject.tool == BASH else " outside the workspace"
    if policy.mode is Mode.DONT_ASK:
        return Deny(f"no rule allows {what}{where}, and nobody is asked in mode dontAsk", "dontAsk")
    return Ask(f"no rule allows {what}{where}")
