"""Permissions: the seam, and the decision in the order of SPEC 6.

Hard deny, deny rules, plan mode, ask rules, allow rules, the built-in ask list, the mode's default. Deny always wins;
what
cannot be decided is asked, and nobody there means denied.
"""

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from celeriac.common.contract.ids import TaskId
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
from celeriac.common.policy.file_names import parse
from celeriac.common.policy.hard_deny import Verdict, judge
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
        try:
            named = parse(named)
        except ValueError:  # no path at all: the tool will say so
            return None
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


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked about one call."""

    task_id: TaskId
    tool_use_id: str
    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decided, and by whom."""

    allowed: bool
    by: str
    remember: bool = False


class Approvals(Protocol):
    """Asks whoever follows the session."""

    async def ask(self, question: Question) -> Answer:
        """Wait for the answer; no answer within the time limit is a refusal."""
        ...


class NullApprovals:
    """Nobody is there, so it is denied."""

    async def ask(self, question: Question) -> Answer:
        """Refused at once."""
        return Answer(allowed=False, by="nobody is there to allow it")


class Permissions(Protocol):
    """Judges calls."""

    def decide(self, subject: Subject, policy: Policy) -> Decision:
        """Judge one call."""
        ...


class StandardPermissions:
    """The order of SPEC 6. Raises UsageError for a rule that cannot be read."""

    def decide(self, subject: Subject, policy: Policy) -> Decision:
        """Judge one call."""
        verdict = judge(subject.command) if subject.tool == BASH else Verdict()
        if verdict.denied is not None:
            return Deny(f"never allowed: {verdict.denied}", "hard deny")
        if (rule := _covering(policy.deny, subject, broadly=True)) is not None:
            return Deny(f"rule {rule.text} denies it", rule.text)
        if subject.tool in _FREE:
            return Allow()
        if policy.mode is Mode.PLAN and not subject.read_only:
            return Deny("plan mode: nothing is changed before the plan is approved", "plan")
        return (
            _asked(subject, policy)
            or _doubted(verdict, subject, policy)
            or _allowed(subject, policy)
            or _default(subject, policy)
        )


def _covering(rules: tuple[str, ...], subject: Subject, *, broadly: bool) -> Rule | None:
    about = subject.command if subject.tool == BASH else (subject.path or "")
    return next((rule for rule in map(parse_rule, rules) if rule.covers(subject.tool, about, broadly=broadly)), None)


def _asked(subject: Subject, policy: Policy) -> Decision | None:
    rule = _covering(policy.ask, subject, broadly=True)
    if rule is None or policy.mode is Mode.BYPASS:
        return None
    if policy.mode is Mode.DONT_ASK:
        return Deny(f"rule {rule.text} would ask, and nobody is asked in mode dontAsk", rule.text)
    return Ask(f"rule {rule.text} asks about it")


def _doubted(verdict: Verdict, subject: Subject, policy: Policy) -> Decision | None:
    """What its words do not tell is never allowed silently, in any mode; a rule for exactly this command lifts it."""
    rules = map(parse_rule, policy.allow)
    if verdict.doubt is None or any(rule.tool == BASH and rule.pattern == subject.command for rule in rules):
        return None
    if policy.mode is Mode.DONT_ASK:
        return Deny(f"{verdict.doubt}, and nobody is asked in mode dontAsk", "dontAsk")
    return Ask(f"what it does cannot be told: {verdict.doubt}")


def _allowed(subject: Subject, policy: Policy) -> Decision | None:
    if _covering(policy.allow, subject, broadly=False) is not None:
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
