"""Permission rules: `Tool` or `Tool(pattern)` (SPEC 6).

In this version a Bash pattern is compared exactly with the whole command; a path pattern is a glob relative to the
workspace,
in which `**` crosses folders.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.tool_names import BASH, wire_name

_RULE = re.compile(r"(?P<tool>[A-Za-z_][A-Za-z0-9_-]{0,127})(?:\((?P<pattern>.+)\))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `pattern` None covers every call of the tool."""

    text: str
    tool: str
    pattern: str | None

    def covers(self, tool: str, subject: str) -> bool:
        """Whether the rule speaks of this call; `subject` is its command, or its path relative to the workspace."""
        if self.tool != tool:
            return False
        if self.pattern is None:
            return True
        if tool == BASH:
            return subject == self.pattern
        return bool(subject) and _glob(self.pattern).fullmatch(subject) is not None


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
