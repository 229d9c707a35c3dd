"""Commands that no mode and no rule allows (SPEC 6, hard deny).

Judged apart from what is allowed, and over-approximating: quotes are taken away, the line is cut at every operator,
and each
piece is looked at after its wrappers. A courtesy against accidents; the wall is the sandbox (SECURITY).
"""

import re
from collections.abc import Iterator

_SEPARATORS = re.compile(r"\|\||&&|;;|[;&|\n(){}`]|\$\(|<\(|>\(")
_WORDS_BEFORE = frozenset(
    {
        "env", "command", "exec", "nice", "timeout", "nohup", "setsid", "time", "busybox", "builtin", "eval", "xargs",
        "then", "do", "else", "if", "while", "until", "!", "stdbuf", "ionice", "chroot", "unshare",
    }
)  # fmt: skip
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_ALWAYS = frozenset({"sudo", "doas", "su", "shutdown", "reboot", "halt", "poweroff"})
_ROOTS = re.compile(r"(?:/+\.?)+\*?|/(?:\.\.?/+)*\.{0,2}|~/?\*?|\$\{?HOME\}?/?\*?|/\*+")
_DEVICE = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|disk|mapper/|mem\b|kmem\b)")
_DEVICE_REDIRECT = re.compile(
    r">{1,2}\|?\s*[\"']?/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|disk|mapper/|mem\b|kmem\b)"
)
_FORK_BOMB = re.compile(r"(?P<name>[^\s(){};|&]+)\s*\(\s*\)\s*\{[^}]*(?P=name)\s*\|\s*(?P=name)\s*&")


def hard_denied(command: str) -> str | None:
    """Why this command is never run, or None."""
    if _FORK_BOMB.search(command):
        return "a fork bomb"
    plain = _unquoted(command)
    if _DEVICE_REDIRECT.search(plain):
        return "it writes to a block device"
    for words in _simple_commands(plain):
        if (why := _judge(words)) is not None:
            return why
    return None


def _unquoted(command: str) -> str:
    """The text as bash would see its words: quotes and needless backslashes gone, line continuations joined."""
    joined = command.replace("\\\n", "")
    joined = re.sub(r"\$'((?:[^'\\]|\\.)*)'", lambda match: _decoded(match[1]), joined)
    joined = re.sub(r"\\(.)", r"\1", joined)
    return joined.replace('"', " ").replace("''", "").replace("'", "") if " -c" in joined else _drop(joined)


def _drop(text: str) -> str:
    return text.replace('"', "").replace("'", "")


def _decoded(ansi: str) -> str:
    try:
        return ansi.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        return ansi


def _simple_commands(plain: str) -> Iterator[list[str]]:
    for piece in _SEPARATORS.split(plain):
        words = piece.replace("${IFS}", " ").replace("$IFS", " ").split()
        # Every suffix that could be a command: what stands before it may be assignments, wrappers or their options.
        for start in range(len(words)):
            if start == 0 or _introduces(words[:start]):
                yield words[start:]


def _introduces(words: list[str]) -> bool:
    """Whether the words before make the next one a program: an assignment, a wrapper, or a wrapper's argument."""
    if re.fullmatch(r"[A-Za-z_]\w*=.*", words[-1]):
        return True
    names = {_base(word) for word in words}
    return bool(names & (_WORDS_BEFORE | _SHELLS))


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _judge(words: list[str]) -> str | None:
    name = _base(words[0])
    if name in _ALWAYS:
        return f"{name} is never run"
    if name == "mkfs" or name.startswith("mkfs."):
        return "it makes a file system"
    if name == "dd" and any(word.startswith("of=") and _DEVICE.match(word[3:]) for word in words[1:]):
        return "it writes to a block device"
    if name == "init" and words[1:2] and words[1] in {"0", "6"}:
        return "it shuts the machine down"
    return "it removes everything" if name == "rm" and _removes_root(words[1:]) else None


def _removes_root(arguments: list[str]) -> bool:
    flags = [word for word in arguments if word.startswith("-") and word != "-"]
    short = "".join(flag[1:] for flag in flags if not flag.startswith("--"))
    recursive = "r" in short.lower() or any(flag.startswith("--r") for flag in flags)
    forced = "f" in short or any(flag.startswith("--f") for flag in flags)
    targets = [word for word in arguments if not word.startswith("-")]
    return recursive and forced and any(_is_root(target) for target in targets)


def _is_root(target: str) -> bool:
    if _ROOTS.fullmatch(target):
        return True
    return target.startswith("/") and _normal(target) in {"/", "/*"}


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in {"", "."}:
            parts.append(part)
    return "/" + "/".join(parts)
