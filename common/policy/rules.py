"""Permission rules: `Tool` or `Tool(pattern)` (SPEC 6).

In this version an allow rule for Bash is compared exactly with the whole command (`*` alone: any command). Deny and
ask rules are compared broadly: with every simple command of the line, and `*` in them stands for anything. A path
pattern is a glob relative to the workspace, in which `**` crosses folders; a broad one also covers what is below a
folder that it names.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.tool_names import BASH, EDIT, GLOB, GREP, READ, WRITE, wire_name
from celeriac.common.policy.hard_deny import simple_commands

_PATH_TOOLS = frozenset({READ, EDIT, WRITE, GLOB, GREP, "NotebookEdit"})

_RULE = re.compile(r"(?P<tool>[A-Za-z_][A-Za-z0-9_-]{0,127})(?:\((?P<pattern>.+)\))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `pattern` None covers every call of the tool."""

    text: str
    tool: str
    pattern: str | None

    def covers(self, tool: str, subject: str, *, broadly: bool) -> bool:
        """Whether the rule speaks of this call. `subject`: its command, or its path relative to the workspace.

        `broadly`: for deny and ask rules, where a call too many is the lesser fault.
        """
        if self.tool != tool:
            return False
        if self.pattern is None:
            return True
        if tool == BASH:
            return self.pattern in {subject, "*"} or (broadly and self._covers_part(self.pattern, subject))
        if tool not in _PATH_TOOLS:
            return broadly  # its patterns are not known in this version
        return bool(subject) and self._covers_path(self.pattern, subject, broadly=broadly)

    @staticmethod
    def _covers_part(pattern: str, command: str) -> bool:
        compiled = _command(pattern)
        return any(compiled.fullmatch(part) is not None for part in simple_commands(command))

    @staticmethod
    def _covers_path(pattern: str, path: str, *, broadly: bool) -> bool:
        parts = path.split("/")
        paths = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)] if broadly else [path]
        return any(_glob(pattern).fullmatch(each) is not None for each in paths)


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """Read one rule. Raises UsageError, which names it: a rule that cannot be read is never silently inert."""
    match = _RULE.fullmatch(text.strip())
    if match is None or (match["pattern"] is not None and not match["pattern"].strip()):
        raise UsageError(
            f"permission rule {text!r}: write Tool or Tool(pattern), for example Bash(pytest -q) or Read(src/**)"
        )
    return Rule(text, wire_name(match["tool"]), match["pattern"])


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay within a folder, `**` crosses them."""
    parts = re.split(r"(\*\*/?|\*|\?)", pattern.removeprefix("./"))
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)


@lru_cache(maxsize=1024)
def _command(pattern: str) -> re.Pattern[str]:
    """`*` is anything; ` *` and `:*` at the end are also nothing: `git push *` covers `git push`."""
    pattern = f"{pattern.removesuffix(':*')} *" if pattern.endswith(":*") else pattern
    text = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.compile(text.removesuffix("\\ .*") + "(?: .*)?" if pattern.endswith(" *") else text, re.DOTALL)
