"""Commands that no mode and no rule allows, and commands that cannot be told from them (SPEC 6, hard deny).

Judged apart from what is allowed, and over-approximating: every simple command of the line is looked at, also those
inside substitutions, here-documents and strings that a shell is given, after wrappers and assignments. A *doubt* is a
line whose words do not tell (`$X -rf /`, `curl … | sh`): never allowed silently. A courtesy against accidents; the wall
is the sandbox (SECURITY).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from celeriac.common.policy.removal import leads_to_root, removal
from celeriac.common.policy.shell_words import UNKNOWN, Simple, TooTangled, cut
from celeriac.common.policy.verdicts import Finding, denied, doubted

MAX_CHARS = 100_000
"""Longer commands are refused; an operating system takes 131,072 bytes at most."""

_KEYWORDS = frozenset(
    {"then", "elif", "else", "do", "!", "{", "}", "if", "while", "until", "coproc", "fi", "done", "esac"}
)
_DATA = frozenset({"for", "select", "case", "[[", "in"})
"""What follows them is no command."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=", re.DOTALL)

_WRAPPERS = frozenset(
    {
        "env", "command", "exec", "builtin", "nice", "ionice", "timeout", "nohup", "setsid", "time", "stdbuf",
        "busybox", "toybox", "xargs", "parallel", "chroot", "unshare", "nsenter", "taskset", "chrt", "watch", "flock",
        "script", "strace", "ltrace", "runuser", "systemd-run", "ssh", "bwrap", "setpriv", "prlimit", "faketime",
    }
)  # fmt: skip
_DURATION = re.compile(r"[\d.]+[smhd]?")
"""An operand of timeout, nice and their like that is no program."""
_WRAPPER_REACH = 50
"""Words behind a wrapper at which the command that it runs is looked for."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash", "mksh", "fish"})
_NEVER = frozenset(
    {"sudo", "doas", "pkexec", "su", "shutdown", "reboot", "halt", "poweroff", "telinit", "kexec", "mke2fs", "mkswap"}
)
_SYSTEMCTL = frozenset({"reboot", "poweroff", "halt", "kexec", "emergency", "rescue"})
_DEVICE_WRITERS = frozenset(
    {"tee", "cp", "mv", "install", "truncate", "shred", "wipefs", "blkdiscard", "fdisk", "sfdisk", "parted", "sgdisk"}
)
_BLOCK_DEVICE = re.compile(
    r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|nbd|ram|zram|disk/|mapper/|block/|mem$|kmem$|port$)"
)
_HARMLESS_DEVICE = re.compile(r"/dev/(?:null|zero|full|stdin|stdout|stderr|tty|fd/.*|shm/.*)")
_FORK_BOMB = re.compile(
    r"(?P<name>[^\s(){};|&]{1,64})\s{0,8}\(\s{0,8}\)\s{0,8}[{(][^}]{0,200}?(?P=name)\s{0,8}\|\s{0,8}(?P=name)\s{0,8}&"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the hard deny list says of a line."""

    denied: str | None = None
    """Why it is never run."""
    doubt: str | None = None
    """Why its words do not tell what it does."""


@lru_cache(maxsize=512)
def judge(command: str) -> Verdict:
    """Judge a whole command line."""
    if len(command) > MAX_CHARS:
        return Verdict(denied=f"it is longer than {MAX_CHARS} characters")
    doubt: str | None = None
    try:
        for finding in _script(command, 0):
            if finding.never:
                return Verdict(denied=finding.why)
            doubt = doubt or finding.why
    except (TooTangled, RecursionError):
        return Verdict(denied="it is too tangled to be judged")
    return Verdict(doubt=doubt)


def hard_denied(command: str) -> str | None:
    """Why this command is never run, or None."""
    return judge(command).denied


def simple_commands(command: str) -> Iterator[str]:
    """The simple commands of a line as plain text, for deny and ask rules; with and without what stands before them."""
    try:
        commands = cut(command).commands
    except TooTangled:
        return
    for simple in commands:
        words = _program_on(simple.words)
        yield " ".join(words)
        if words:
            yield " ".join([_base(words[0]), *words[1:]])
            if _base(words[0]) in _WRAPPERS:
                yield from (" ".join(words[at:]) for at in range(1, min(len(words), _WRAPPER_REACH)))


def _script(text: str, depth: int) -> Iterator[Finding]:
    line = cut(text, depth)
    if _FORK_BOMB.search(line.skeleton):
        yield denied("it is a fork bomb")
    in_root = any(_goes_to_root(simple.words) for simple in line.commands)
    for simple in line.commands:
        yield from _Judge(simple, depth, in_root=in_root).all()


def _goes_to_root(words: list[str]) -> bool:
    words = _program_on(words)
    targets = [word for word in words[1:] if not word.startswith("-")]
    return words[:1] in (["cd"], ["pushd"]) and (not targets or leads_to_root(targets[0]))


def _program_on(words: list[str]) -> list[str]:
    """From the program's name on: keywords and assignments are set aside."""
    for at, word in enumerate(words):
        if word in _DATA:
            return []
        if word == "function":
            return _program_on(words[at + 2 :])
        if word not in _KEYWORDS and not _ASSIGNMENT.match(word):
            return words[at:]
    return []


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _wrapped(words: list[str]) -> list[str] | None:
    """What a wrapper runs: from the first word on that could be a program worth judging."""
    if _base(words[0]) not in _WRAPPERS:
        return None
    return next((words[at:] for at, word in enumerate(words) if at and _is_judged(_base(word))), None)


def _is_judged(name: str) -> bool:
    return name in _NEVER | _WRAPPERS | _SHELLS | _DEVICE_WRITERS | _JUDGES.keys() or name.startswith("mkfs")


class _Judge:
    """One simple command."""

    def __init__(self, simple: Simple, depth: int, *, in_root: bool) -> None:
        self.simple, self.depth, self.in_root = simple, depth, in_root

    def all(self) -> Iterator[Finding]:
        """Its redirections and its words."""
        if any(_is_block_device(target) for target in self.simple.targets):
            yield denied("it writes to a block device")
        yield from self.words(_program_on(self.simple.words))

    def words(self, words: list[str], *, by_wrapper: str = "") -> Iterator[Finding]:
        """Words that begin with a program."""
        if not words:
            return
        name, arguments = _base(words[0]), words[1:]
        if UNKNOWN in words[0]:
            yield doubted("the name of a program is computed")
        elif name in _NEVER or name.startswith("mkfs"):
            yield denied(f"{name} is never run")
        elif name in _WRAPPERS:
            yield from self.wrapper(name, words)
        elif name in _SHELLS:
            yield from self.shell(arguments)
        elif name in _DEVICE_WRITERS and any(map(_is_block_device, arguments)):
            yield denied("it writes to a block device")
        elif name == "rm":
            yield from removal(arguments, in_root=self.in_root, more_by_stdin=by_wrapper in {"xargs", "parallel"})
        elif (other := _JUDGES.get(name)) is not None:
            yield from other(self, arguments)

    def wrapper(self, name: str, words: list[str]) -> Iterator[Finding]:
        """What it runs, be it words or a string."""
        wrapped = _wrapped(words)
        if wrapped is not None:
            yield from self.words(wrapped, by_wrapper=name)
        operands = [word for word in words[1:] if not word.startswith("-") and not _ASSIGNMENT.match(word)]
        for word in operands:
            if " " in word or "\n" in word:
                yield from _script(word, self.depth + 1)
        programs = [word for word in operands if not _DURATION.fullmatch(word)]
        if any(word.startswith(UNKNOWN) for word in programs[:1]):
            yield doubted("the name of a program is computed")

    def shell(self, arguments: list[str]) -> Iterator[Finding]:
        """A shell: its strings, its input."""
        operands = [word for word in arguments if not word.startswith(("-", "+"))]
        if any(word.startswith("-") and "c" in word and not word.startswith("--") for word in arguments):
            for word in operands:
                yield from _script(word, self.depth + 1)
            return
        for text in self.simple.stdin:
            yield from _script(text, self.depth + 1)
        if any(UNKNOWN in word for word in [*operands[:1], *self.simple.targets]):
            yield doubted("a shell runs a computed script")
        elif self.simple.piped and not operands:
            yield doubted("a shell runs the output of another command")

    def evaluated(self, arguments: list[str]) -> Iterator[Finding]:
        """`eval`: its arguments are a script."""
        yield from _script(" ".join(arguments), self.depth + 1)
        if any(UNKNOWN in word for word in arguments):
            yield doubted("computed text is evaluated")

    def trapped(self, arguments: list[str]) -> Iterator[Finding]:
        """`trap` and `alias`: texts that are scripts for later."""
        for word in arguments:
            yield from _script(word.partition("=")[2] if _ASSIGNMENT.match(word) else word, self.depth + 1)

    def sourced(self, arguments: list[str]) -> Iterator[Finding]:
        """`source`: a file is a script."""
        if any(UNKNOWN in word for word in arguments[:1]):
            yield doubted("a computed script is sourced")

    def found(self, arguments: list[str]) -> Iterator[Finding]:
        """`find` that removes or runs something."""
        at = next(
            (at for at, word in enumerate(arguments) if word.startswith("-") or word in {"(", "!"}), len(arguments)
        )
        tops = arguments[:at]
        runs = [at for at, word in enumerate(arguments) if word in {"-exec", "-execdir", "-ok", "-okdir"}]
        removes = "-delete" in arguments or any(_base(word) == "rm" for at in runs for word in arguments[at + 1 :])
        if removes and any(map(leads_to_root, tops)):
            yield denied("it removes everything below the root or the home folder")
        elif removes and any(UNKNOWN in top for top in tops):
            yield doubted("where it removes files is computed")
        for start in runs:
            yield from self.words(arguments[start + 1 :])

    def copied(self, arguments: list[str]) -> Iterator[Finding]:
        """`dd`."""
        for target in (word[3:] for word in arguments if word.startswith("of=")):
            if target.startswith(UNKNOWN):
                yield doubted("where dd writes to is computed")
            elif _slashes(target).startswith("/dev/") and not _HARMLESS_DEVICE.fullmatch(_slashes(target)):
                yield denied("dd writes to a device")

    def initialised(self, arguments: list[str]) -> Iterator[Finding]:
        """`init` and `systemctl`."""
        if any(word in _SYSTEMCTL | {"0", "6"} for word in arguments):
            yield denied("it shuts the machine down")


_JUDGES: dict[str, Callable[[_Judge, list[str]], Iterator[Finding]]] = {
    "rm": lambda judge_, arguments: removal(arguments, in_root=judge_.in_root),
    "eval": _Judge.evaluated,
    "trap": _Judge.trapped,
    "alias": _Judge.trapped,
    "source": _Judge.sourced,
    ".": _Judge.sourced,
    "find": _Judge.found,
    "dd": _Judge.copied,
    "init": _Judge.initialised,
    "systemctl": _Judge.initialised,
}


def _slashes(path: str) -> str:
    return re.sub(r"/(?:\.?/)+", "/", path)


def _is_block_device(path: str) -> bool:
    return _BLOCK_DEVICE.match(_slashes(path)) is not None
