"""The order of SPEC 6, and rules."""

from pathlib import Path

import pytest

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Mode
from celeriac.common.contract.tool_names import COORDINATOR_MODE_ALLOWED
from celeriac.common.policy.decide import Allow, Ask, Decision, Deny, Policy, StandardPermissions, Subject
from celeriac.common.policy.rules import parse_rule

ROOT = Path("/ws")


def about(tool: str, *, read_only: bool = False, **raw: str) -> Subject:
    given: JsonObject = dict(raw.items())
    return Subject(tool, given, read_only=read_only, workspace=ROOT)


def bash(command: str) -> Subject:
    return about("Bash", command=command)


def decide(
    subject: Subject,
    mode: Mode = Mode.DEFAULT,
    *,
    allow: tuple[str, ...] = (),
    ask: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
) -> type[Decision]:
    return type(StandardPermissions().decide(subject, Policy(mode=mode, allow=allow, ask=ask, deny=deny)))


READ = about("Read", read_only=True, file_path="src/a.py")
READ_OUTSIDE = about("Read", read_only=True, file_path="/etc/passwd")
EDIT = about("Edit", file_path="src/a.py")
EDIT_OUTSIDE = about("Edit", file_path="../a.py")
BASH = bash("pytest -q")


@pytest.mark.parametrize(
    ("mode", "decisions"),
    [
        (Mode.PLAN, (Allow, Ask, Deny, Deny, Deny)),
        (Mode.DONT_ASK, (Allow, Deny, Deny, Deny, Deny)),
        (Mode.DEFAULT, (Allow, Ask, Ask, Ask, Ask)),
        (Mode.ACCEPT_EDITS, (Allow, Ask, Allow, Ask, Ask)),
        (Mode.BYPASS, (Allow, Allow, Allow, Allow, Allow)),
    ],
)
def test_the_defaults_of_the_modes(mode: Mode, decisions: tuple[type[Decision], ...]) -> None:
    subjects = (READ, READ_OUTSIDE, EDIT, EDIT_OUTSIDE, BASH)
    found = tuple(decide(subject, mode) for subject in subjects)
    if mode is Mode.PLAN:
        assert found[0] is Allow
        assert found[1] is not Allow
        assert found[2:] == decisions[2:]
    else:
        assert found == decisions


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("tool", sorted(COORDINATOR_MODE_ALLOWED | {"TodoWrite", "Skill", "ToolSearch"}))
def test_these_need_no_rule_in_any_mode(tool: str, mode: Mode) -> None:
    assert decide(about(tool), mode) is Allow
    assert decide(about(tool), mode, deny=(tool,)) is Deny


@pytest.mark.parametrize("mode", list(Mode))
def test_deny_wins_over_everything(mode: Mode) -> None:
    assert decide(EDIT, mode, allow=("Edit",), ask=("Edit",), deny=("Edit(src/**)",)) is Deny
    assert decide(BASH, mode, allow=("Bash(pytest -q)",), deny=("Bash",)) is Deny


def test_ask_comes_before_allow_and_depends_on_the_mode() -> None:
    for mode, decision in ((Mode.DEFAULT, Ask), (Mode.ACCEPT_EDITS, Ask), (Mode.DONT_ASK, Deny), (Mode.BYPASS, Allow)):
        assert decide(BASH, mode, allow=("Bash",), ask=("Bash(pytest *)",)) is decision
    assert decide(BASH, Mode.PLAN, allow=("Bash",)) is Deny


@pytest.mark.parametrize(
    ("rule", "command", "allowed"),
    [
        ("Bash", "anything at all", True),
        ("Bash(*)", "anything at all", True),
        ("Shell(pytest -q)", "pytest -q", True),
        ("Bash(pytest -q)", "pytest -q", True),
        ("Bash(pytest -q)", "pytest -q tests", False),
        ("Bash(pytest -q)", "pytest  -q", False),
        ("Bash(pytest -q)", "pytest -q; ls", False),
        ("Bash(pytest *)", "pytest -q", False),
        ("Bash(a (b))", "a (b)", True),
        ("Read", "pytest -q", False),
    ],
)
def test_allow_rules_for_bash_are_exact(rule: str, command: str, allowed: bool) -> None:
    assert (decide(bash(command), allow=(rule,)) is Allow) is allowed


@pytest.mark.parametrize(
    ("rule", "command", "denied"),
    [
        ("Bash(git push *)", "git push", True),
        ("Bash(git push *)", "git push origin main", True),
        ("Bash(git push *)", "cd x && git push -f", True),
        ("Bash(git push *)", "timeout 9 git push", True),
        ("Bash(git push *)", "X=1 /usr/bin/git push", True),
        ("Bash(git push *)", 'echo "$(git push)"', True),
        ("Bash(git push *)", "'git' pu\"sh\" origin", True),
        ("Bash(git push *)", "git pushed", False),
        ("Bash(git push *)", "git log --grep='git push'", False),
        ("Bash(git push)", "true; git push", True),
        ("Bash(git push)", "git push origin", False),
        ("Bash(curl:*)", "curl x", True),
        ("Bash(curl:*)", "curly x", False),
    ],
)
def test_deny_rules_for_bash_see_every_part(rule: str, command: str, denied: bool) -> None:
    assert (decide(bash(command), Mode.BYPASS, deny=(rule,)) is Deny) is denied


@pytest.mark.parametrize(
    ("rule", "path", "allowed", "denied"),
    [
        ("Edit(src/**)", "src/a/b.py", True, True),
        ("Edit(src/**)", "./src/x/../a.py", True, True),
        ("Edit(./src/*.py)", "src/a.py", True, True),
        ("Edit(src/*.py)", "src/b/a.py", False, False),
        ("Edit(src)", "src/a.py", False, True),
        ("Edit(src/**)", "other/src/a.py", False, False),
        ("Edit(src/**)", "src/../other/a.py", False, False),
        ("Edit(**/*.env)", "a/b/x.env", True, True),
        ("Edit(src/**)", "/ws/src/a.py", True, True),
        ("FileEdit(a.py)", "a.py", True, True),
        ("Edit(a\u2019b)", '"a\\u2019b"', True, True),
    ],
)
def test_path_rules_are_globs_in_the_workspace(rule: str, path: str, allowed: bool, denied: bool) -> None:
    assert (decide(about("Edit", file_path=path), allow=(rule,)) is Allow) is allowed
    assert (decide(about("Edit", file_path=path), Mode.BYPASS, deny=(rule,)) is Deny) is denied


def test_a_pattern_that_this_version_does_not_know_denies_but_never_allows() -> None:
    fetch = about("WebFetch", url="https://example.org")
    assert decide(fetch, allow=("WebFetch(domain:example.org)",)) is Ask
    assert decide(fetch, Mode.BYPASS, deny=("WebFetch(domain:example.org)",)) is Deny


@pytest.mark.parametrize("text", ["", "Bash(", "Bash()", "Bash( )", "(x)", "Bash(x", "Bash x", "1a", "Bash(x)y"])
def test_a_rule_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rule(text)
    assert repr(text) in str(caught.value)
