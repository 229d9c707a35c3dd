"""Whether an `rm` removes the root or the home folder, in whatever spelling (CASES C16, C109)."""

import posixpath
import re
from collections.abc import Iterator

from celeriac.common.policy.shell_words import HOME, UNKNOWN
from celeriac.common.policy.verdicts import Finding, denied, doubted

WHY = "it removes the root or the home folder"
_ALL_HERE = frozenset({"*", ".", "./", "./*", "..", "../", ".*", "./.*", "**"})
_HOMES = re.compile(r"/(?:root|home|Users|home/[^/]+|Users/[^/]+)")


def removal(arguments: list[str], *, in_root: bool, more_by_stdin: bool = False) -> Iterator[Finding]:
    """Judge the arguments of `rm`. `in_root`: the line goes to the root or home folder first."""
    options, targets = _parted(arguments)
    if any(option.startswith("--no-p") for option in options):
        yield denied(WHY)
    computed = any(UNKNOWN in word for word in arguments)
    if not (computed or any(_is_recursive(option) for option in options)):
        return
    for target in targets:
        if leads_to_root(target) or (in_root and target in _ALL_HERE):
            yield denied(WHY)
        elif UNKNOWN in target:
            yield doubted("what rm removes is computed")
    if more_by_stdin and not targets:
        yield doubted("what rm removes is computed")


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Options and targets; options may stand behind targets, up to `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [word for word in arguments[:end] if word.startswith("-") and word != "-"]
    targets = [word for word in arguments[:end] if not word.startswith("-") or word == "-"]
    return options, targets + arguments[end + 1 :]


def _is_recursive(option: str) -> bool:
    """`-r` or `-R` in any cluster, or an abbreviation of `--recursive`; without force nobody would answer either."""
    if option.startswith("--"):
        return len(option) > len("--") and "--recursive".startswith(option)
    return "r" in option.lower()


def leads_to_root(target: str) -> bool:
    """Whether a word names the root, the home folder, or everything in one of them."""
    if target.startswith(HOME):
        user, _, rest = target[1:].partition("/")
        return UNKNOWN not in user and _is_all(posixpath.normpath(f"/home/user/{rest}"), "/home/user")
    if not target.startswith("/"):
        return False
    path = posixpath.normpath("/" + target.lstrip("/"))
    if UNKNOWN in path or HOME in path:
        return False
    return _is_all(path, "/") or _HOMES.fullmatch(path) is not None


def _is_all(path: str, top: str) -> bool:
    """`top` itself, above it, or all that is in it."""
    if top == path or top.startswith(path.rstrip("/") + "/"):
        return True
    first = path.removeprefix(top).strip("/").split("/")[0]
    return _is_any(first)


def _is_any(component: str) -> bool:
    """A pattern that nearly every name matches."""
    return component.startswith("[") or (
        bool(re.search(r"[*?]", component)) and not re.search(r"[^*?.\[\]!-]", component)
    )
