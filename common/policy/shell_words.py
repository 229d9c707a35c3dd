"""A command line as bash would cut it into simple commands, roughly and on the safe side. No I/O.

It reads quotes, expansions, substitutions, here-documents and redirections, and finds the commands inside each. What
it cannot know (the value of a variable, the output of a command) becomes UNKNOWN; the home folder becomes HOME. Where
it errs, it finds a command too many. It serves the hard deny list and deny rules; nothing is ever allowed because of
it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

HOME, UNKNOWN = "\ue000", "\ue001"
_OPEN, _COMMA, _CLOSE = "\ue002", "\ue003", "\ue004"
_PRIVATE = re.compile("[\ue000-\ue004]")
_BRACE = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*{_COMMA}[^{_OPEN}{_CLOSE}]*){_CLOSE}")
_MAX_ALTERNATIVES = 64
MAX_DEPTH = 40
"""Substitutions inside each other; no honest command comes near."""

_REDIRECT = re.compile(r"&>>|&>|<<<|<<-|<<|<>|>>|>&|>\||<&|<|>")
_NAME = re.compile(r"[A-Za-z_]\w*|[@*#?$!0-9-]")
_HEREDOC_WORD = re.compile(r"[ \t]*((?:\\.|'[^']*'|\"[^\"]*\"|[^\s;&|<>()])+)")
_ANSI_C = re.compile(r"\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
}


_MAX_OPEN_HEREDOCS = 20
"""Here-documents without an end: bash takes the first to the end of the text, so an honest command has one at most."""


class TooTangled(Exception):
    """The line is nested beyond MAX_DEPTH, or has too many here-documents without an end."""


@dataclass(slots=True)
class Simple:
    """One simple command."""

    words: list[str] = field(default_factory=list)
    """After quote removal and brace expansion."""
    targets: list[str] = field(default_factory=list)
    """Files that it is redirected to or from."""
    stdin: list[str] = field(default_factory=list)
    """Texts of its here-documents and here-strings."""
    piped: bool = False
    """Its input is another command's output."""


@dataclass(frozen=True, slots=True)
class Line:
    """A whole command line."""

    commands: tuple[Simple, ...]
    skeleton: str
    """The text outside of quotes."""


def cut(text: str, depth: int = 0) -> Line:
    """Find all simple commands, those of substitutions too. Raises TooTangled."""
    reader = _Reader(_PRIVATE.sub("\ufffd", text) if depth == 0 else text, depth)
    reader.script()
    return Line(tuple(reader.commands), "".join(reader.skeleton))


@dataclass(slots=True)
class _Heredoc:
    delimiter: str
    strip_tabs: bool
    literal: bool
    command: Simple


class _Reader:
    """One pass over the text."""

    def __init__(self, text: str, depth: int) -> None:
        self.text, self.at, self.depth = text, 0, depth
        self.commands: list[Simple] = []
        self.skeleton: list[str] = []
        self.current = Simple()
        self.word: list[str] | None = None
        self.redirect = ""
        self.heredocs: list[_Heredoc] = []
        self.arithmetic = 0
        self.open_heredocs = 0
        self.handlers: dict[str, Callable[[], None]] = {
            **dict.fromkeys(" \t", self.blank),
            **dict.fromkeys(";&|", self.operator),
            **dict.fromkeys("<>", self.redirection),
            **dict.fromkeys("{},", self.brace),
            "\n": self.newline,
            "(": self.group,
            ")": self.operator,
            "'": self.single,
            '"': self.double,
            "\\": self.escape,
            "$": self.dollar,
            "`": self.backtick,
            "#": self.comment,
            "~": self.tilde,
        }

    def script(self, end: str = "") -> None:
        """Read commands until an unmatched `end`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooTangled
        while self.at < len(self.text):
            char = self.text[self.at]
            self.skeleton.append("Q" if char in "'\"" else char)
            if char == end:
                self.at += 1
                break
            handler = self.handlers.get(char)
            if handler is None:
                self.put(char)
                self.at += 1
            else:
                handler()
        self.end_command()
        self.depth -= 1

    def ahead(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def put(self, text: str) -> None:
        if self.word is None:
            self.word = []
        self.word.append(text)

    # what ends words and commands

    def blank(self) -> None:
        self.end_word()
        self.at += 1

    def operator(self) -> None:
        if self.ahead("&>"):
            self.redirection()
            return
        pipe = self.ahead("|") and not self.ahead("||")
        self.end_command()
        self.at += 2 if self.text[self.at : self.at + 2] in {"||", "&&", "|&", ";;"} else 1
        self.current.piped = pipe

    def newline(self) -> None:
        self.end_command()
        self.at += 1
        for heredoc in self.heredocs:
            self.take_body(heredoc)
        self.heredocs = []

    def end_word(self) -> None:
        if self.word is None:
            return
        text, self.word = "".join(self.word), None
        if self.redirect:
            (self.current.stdin if self.redirect == "<<<" else self.current.targets).append(_plain(text))
            self.redirect = ""
        else:
            self.current.words += expand_braces(text)

    def end_command(self) -> None:
        self.end_word()
        self.redirect = ""
        if self.current.words or self.current.targets:
            self.commands.append(self.current)
        self.current = Simple()

    def comment(self) -> None:
        if self.word is not None:
            self.put("#")
            self.at += 1
            return
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    # quotes

    def single(self) -> None:
        end = self.text.find("'", self.at + 1)
        end = len(self.text) if end < 0 else end
        self.put(self.text[self.at + 1 : end])
        self.at = end + 1

    def escape(self) -> None:
        if not self.ahead("\\\n"):
            self.put(self.text[self.at + 1 : self.at + 2])
        self.at += 2

    def double(self) -> None:
        self.put("")
        self.at += 1
        self.expansions('"')

    def expansions(self, end: str) -> None:
        """Text in which only expansions count: double quotes, the body of a here-document."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == end:
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in {'"', "$", "`", "\\", "\n"}:
                self.escape()
            elif char == "$":
                self.dollar(quoted=True)
            elif char == "`":
                self.backtick()
            else:
                self.put(char)
                self.at += 1

    def ansi_c(self) -> None:
        match = re.compile(r"\$'((?:[^'\\]|\\.)*)'?", re.DOTALL).match(self.text, self.at)
        assert match is not None
        self.put(_ANSI_C.sub(_ansi_char, match[1]))
        self.at = match.end()

    # expansions

    def dollar(self, *, quoted: bool = False) -> None:
        if self.ahead("$("):
            self.at += 2
            self.nested(arithmetic=self.ahead("("))
        elif self.ahead("${"):
            self.parameter()
        elif self.ahead("$'") and not quoted:
            self.ansi_c()
        elif self.ahead('$"') and not quoted:
            self.at += 1
        else:
            self.variable(quoted=quoted)

    def variable(self, *, quoted: bool) -> None:
        match = _NAME.match(self.text, self.at + 1)
        if match is None:
            self.put("$")
            self.at += 1
            return
        self.at = match.end()
        self.value(match[0], quoted=quoted)

    def value(self, name: str, *, quoted: bool) -> None:
        if name == "IFS" and not quoted:
            self.end_word()
        else:
            self.put(HOME if name == "HOME" else UNKNOWN)

    def parameter(self) -> None:
        start, depth = self.at + 2, 0
        self.at = start
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            depth += (char == "{") - (char == "}")
            if depth < 0:
                break
        inner = self.text[start : self.at - 1]
        name = _NAME.match(inner)
        self.inside(inner)
        self.value(name[0] if name is not None else "", quoted=False)

    def inside(self, text: str) -> None:
        """Commands in a piece of text in which expansions happen."""
        reader = _Reader(text, self.depth + 1)
        if reader.depth > MAX_DEPTH:
            raise TooTangled
        reader.expansions("")
        self.commands += reader.commands

    def nested(self, *, arithmetic: bool = False) -> None:
        """A substitution whose opening parenthesis was read."""
        outer = self.current, self.word, self.redirect
        self.current, self.word, self.redirect = Simple(), None, ""
        self.arithmetic += arithmetic
        self.script(")")
        self.arithmetic -= arithmetic
        self.current, self.word, self.redirect = outer
        self.put(UNKNOWN)

    def backtick(self) -> None:
        match = re.compile(r"`((?:[^`\\]|\\.)*)`?", re.DOTALL).match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        self.commands += cut(re.sub(r"\\([`\\$])", r"\1", match[1]), self.depth + 1).commands
        self.put(UNKNOWN)

    def tilde(self) -> None:
        self.put(HOME if self.word is None else "~")
        self.at += 1

    def brace(self) -> None:
        self.put({"{": _OPEN, ",": _COMMA, "}": _CLOSE}[self.text[self.at]])
        self.at += 1

    def group(self) -> None:
        self.end_command()
        self.at += 1
        arithmetic = self.ahead("(")
        self.arithmetic += arithmetic
        self.script(")")
        self.arithmetic -= arithmetic

    # redirections

    def redirection(self) -> None:
        if self.ahead("<(") or self.ahead(">("):
            self.at += 2
            self.nested()
            return
        match = _REDIRECT.match(self.text, self.at)
        assert match is not None
        if self.word is not None and "".join(self.word).isdigit():
            self.word = None  # the number of a descriptor
        self.end_word()
        self.at = match.end()
        if match[0] in {"<<", "<<-"} and not self.arithmetic:
            self.heredoc(strip_tabs=match[0] == "<<-")
        else:
            self.redirect = match[0]

    def heredoc(self, *, strip_tabs: bool) -> None:
        match = _HEREDOC_WORD.match(self.text, self.at)
        if match is None:
            return
        self.at = match.end()
        delimiter = re.sub(r"['\"\\]", "", match[1])
        literal = delimiter != match[1]
        self.heredocs.append(_Heredoc(delimiter, strip_tabs, literal, self.current))

    def take_body(self, heredoc: _Heredoc) -> None:
        """Set the body apart; without its last line it stays, to be read as commands."""
        lines: list[str] = []
        at = self.at
        while at < len(self.text):
            end = self.text.find("\n", at)
            line = self.text[at : end if end >= 0 else len(self.text)]
            at += len(line) + 1
            line = line.lstrip("\t") if heredoc.strip_tabs else line
            if line == heredoc.delimiter:
                self.at = at
                self.body(heredoc, "\n".join(lines))
                return
            lines.append(line)
        self.open_heredocs += 1
        if self.open_heredocs > _MAX_OPEN_HEREDOCS:
            raise TooTangled

    def body(self, heredoc: _Heredoc, text: str) -> None:
        heredoc.command.stdin.append(text)
        if not heredoc.literal:
            self.inside(text)


def _ansi_char(match: re.Match[str]) -> str:
    code = match[0][1:]
    if code[0] in "xuU" and len(code) > 1:
        value = int(code[1:], 16)
        return chr(value) if value <= 0x10FFFF else "\ufffd"
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _SIMPLE_ESCAPES.get(code, code)


def expand_braces(text: str) -> list[str]:
    """What `{a,b}` outside of quotes stands for; more than a few stay unexpanded."""
    done: list[str] = []
    todo = [text]
    while todo:
        if len(done) + len(todo) > _MAX_ALTERNATIVES:
            return [_plain(text), UNKNOWN]
        each = todo.pop()
        group = _BRACE.search(each)
        if group is None:
            done.append(_plain(each))
        else:
            todo += [each[: group.start()] + part + each[group.end() :] for part in reversed(group[1].split(_COMMA))]
    return [word for word in done if word] if len(done) > 1 else done


def _plain(text: str) -> str:
    return text.replace(_OPEN, "{").replace(_COMMA, ",").replace(_CLOSE, "}")
