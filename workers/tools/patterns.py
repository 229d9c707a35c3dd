"""Glob patterns over paths: `*`, `?`, `[…]` within a component, `**` across them, `{a,b}` alternatives. No I/O."""

import fnmatch
import re
from functools import cache

MAX_ALTERNATIVES = 256
"""What braces may expand to; more is not expanded."""


class Pattern:
    """One pattern, compiled."""

    def __init__(self, text: str) -> None:
        """Compile `text`; every text is some pattern."""
        self._alternatives = [_compiled(each) for each in alternatives(text.removeprefix("./"))]

    def matches(self, path: str) -> bool:
        """Whether a path (components separated by `/`) matches as a whole."""
        parts = tuple(path.split("/"))
        return any(_matches(pattern, parts) for pattern in self._alternatives)


Component = re.Pattern[str] | None
"""None stands for `**`."""


def _compiled(text: str) -> tuple[Component, ...]:
    """Components; neighbouring `**` are one, so that matching stays cheap."""
    compiled: list[Component] = []
    for part in text.split("/"):
        component = None if part == "**" else re.compile(fnmatch.translate(part))
        if component is not None or not compiled or compiled[-1] is not None:
            compiled.append(component)
    return tuple(compiled)


def _matches(pattern: tuple[Component, ...], parts: tuple[str, ...]) -> bool:
    @cache
    def at(here: int, part: int) -> bool:
        if here == len(pattern):
            return part == len(parts)
        component = pattern[here]
        if component is None:
            return at(here + 1, part) or (part < len(parts) and at(here, part + 1))
        return part < len(parts) and component.match(parts[part]) is not None and at(here + 1, part + 1)

    return at(0, 0)


def alternatives(text: str) -> list[str]:
    """What `{a,b}` stands for, nested ones too; a brace without a comma or a partner is an ordinary character."""
    done: list[str] = []
    todo = [text]
    while todo:
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            return [text]
        each = todo.pop()
        group = re.search(r"\{([^{}]*,[^{}]*)\}", each)
        if group is None:
            done.append(each)
        else:
            todo += [each[: group.start()] + choice + each[group.end() :] for choice in group[1].split(",")]
    return done
