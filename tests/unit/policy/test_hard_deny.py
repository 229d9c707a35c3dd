"""The hard deny list in every spelling; nothing here is ever run (CASES C16, C109, vectors/shell_permissions)."""

import json
import time
from pathlib import Path

import pytest

from celeriac.common.contract.task import Mode
from celeriac.common.contract.tool_names import BASH
from celeriac.common.policy.decide import Allow, Ask, Decision, Deny, Policy, StandardPermissions, Subject
from celeriac.common.policy.hard_deny import judge

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "shell_permissions.json").read_text(encoding="utf-8"))[
    "vectors"
]
WORDS: dict[type[Decision], str] = {Allow: "allow", Ask: "ask", Deny: "deny"}


def decide(command: str, mode: Mode = Mode.DEFAULT, allow: str = "Bash(*)") -> str:
    subject = Subject(BASH, {"command": command}, read_only=False)
    return WORDS[type(StandardPermissions().decide(subject, Policy(mode=mode, allow=(allow,))))]


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["rules"] == "deny_only_allow_all"], ids=lambda v: str(v["id"])
)
def test_the_vectors_of_the_built_in_list(vector: dict[str, str]) -> None:
    assert decide(vector["command"]) in vector["accept"], vector["why"]


REMOVALS = [
    "rm -rf /",
    "rm -fr /",
    "rm -r -f /",
    "rm --recursive --force /",
    "rm -rf --no-preserve-root /",
    "rm / -rf",
    "rm -rf $HOME",
    'rm -rf "${HOME}"',
    "rm -Rf /",
    "rm -rf ~/",
    "rm -rf //",
    "rm -rf /*",
    "rm -rf ~",
    "rm -rf ~root",
    "rm -rf -- /",
    "rm -rf build /",
    "rm -rf /./",
    "rm -rf /usr/../",
    "rm -rf ~/..",
    "rm -rf $HOME/*",
    "rm -rf ~/.*",
    "rm -rf '/'",
    "'rm' '-rf' '/'",
    "rm -rf /?*",
    "rm -rf /[a-z]*",
    "rm -r /",
    "rm -rf /home/me",
    "rm -rf /root",
    "rm -rf ${HOME:?}/",
    "rm $FLAGS /",
    "{rm,-rf,/}",
    "rm -rf /{,x}",
    "rm${IFS}-rf${IFS}/",
    "rm\t-rf\t/",
    "true; rm -rf /",
    "true &&rm -rf /",
    "true||rm -rf /",
    "true|rm -rf /",
    "true&rm -rf /",
    "true\nrm -rf /",
    "if true; then rm -rf /; fi",
    "while :; do rm -rf /; done",
    "case x in x) rm -rf /;; esac",
    "f() ( rm -rf / )",
    "function f { rm -rf /; }",
    "x=$(rm -rf /)",
    'echo "$(rm -rf /)"',
    'echo "a `rm -rf /` b"',
    "echo ${x:-$(rm -rf /)}",
    "cat <<EOF\n$(rm -rf /)\nEOF",
    "cat <<A <<'B'\na\nA\n$x\nB\nrm -rf /",
    "echo $((1<<3))\nrm -rf /\n3",
    "((x=1<<3))\nrm -rf /\n3))",
    "bash -c 'rm -rf /'",
    "bash -lc 'cd x && rm -rf /'",
    "sh -ec \"rm -rf '/'\"",
    "bash -c \"bash -c 'rm -rf /'\"",
    "eval rm -rf /",
    'eval "rm -rf /"',
    "trap 'rm -rf /' EXIT",
    "alias x='rm -rf /'",
    "bash <<< 'rm -rf /'",
    "env -i X=1 rm -rf /",
    "nohup nice -n 5 rm -rf /",
    "xargs rm -rf / < list",
    "find / -delete",
    "find ~ -exec rm -rf {} +",
    "find . -exec rm -rf / \\;",
    "cd / && rm -rf *",
    "cd; rm -rf ./*",
    "pushd /; rm -rf .",
    "watch 'rm -rf /'",
    "ssh h 'rm -rf /'",
    "flock l -c 'rm -rf /'",
    "busybox rm -rf /",
    "/usr/bin/env rm -rf /",
    "r\\\nm -rf /",
    "rm -r\\\nf /",
    "\\rm -rf /",
    "! rm -rf /",
    "2>/dev/null rm -rf /",
    "rm -rf / > log 2>&1 &",
    "x=1 y=2 rm -rf /",
    "time -p rm -rf /",
    "coproc rm -rf /",
]
OTHERS = [
    "sudo ls",
    "/usr/bin/sudo -n true",
    "env sudo true",
    "x=$(sudo true)",
    "su -c id",
    "doas ls",
    "shutdown -h now",
    "reboot",
    "halt",
    "poweroff",
    "init 0",
    "systemctl reboot",
    "mkfs /dev/sdb",
    "mkfs.ext4 disk.img",
    "dd if=/dev/zero of=/dev/sda",
    "dd of=//dev/./sda if=x",
    "dd if=x of=/dev/mapper/root",
    "echo x > /dev/sda",
    "cat f >>/dev/nvme0n1",
    "echo x >| /dev/vda",
    "echo x &> /dev/sda1",
    "tee /dev/sdb < x",
    "cp image /dev/mmcblk0",
    "shred /dev/sda",
    ":(){ :|:& };:",
    ":(){ :|: & };:",
    "bomb() { bomb | bomb & }; bomb",
    "f(){ echo; f|f& };f",
    "bash -c ':(){ :|:& };:'",
    "> /dev/sda",
    "timeout 9 reboot",
]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("command", [*REMOVALS, *OTHERS])
def test_what_is_never_run_is_denied_in_every_mode(command: str, mode: Mode) -> None:
    assert decide(command, mode) == "deny"
    assert decide(command, mode, allow=f"Bash({command})") == "deny"


HARMLESS = [
    "rm -rf ./build",
    "rm -rf build/*",
    "rm -rf /tmp/job-1",
    "rm -rf /var/tmp/x",
    "rm -f /tmp/x",
    "rm -rf ~/project/build",
    "rm -rf $HOME/.cache/x",
    "rm -rf *",
    "rm x",
    "rm -i /etc/hosts.bak",
    "echo rm -rf /",
    "echo 'rm -rf /'",
    "git commit -m 'rm -rf /'",
    "grep -rn 'rm -rf /' docs",
    "cat <<'EOF'\nrm -rf /\nEOF",
    "cat <<EOF\nrm -rf /\nEOF",
    "true # rm -rf /",
    "# reboot",
    "man reboot",
    "echo sudo",
    "git log --grep=sudo",
    "pytest -q",
    "python3 -m pytest && echo ok",
    'for f in *.py; do wc -l "$f"; done',
    "find . -name '*.pyc' -delete",
    "find build -exec rm -rf {} +",
    "dd if=a of=b",
    "dd if=x of=/dev/null",
    "echo x > /dev/null",
    "ls /dev/sda",
    "cat <(echo x)",
    "bash script.sh",
    "sh -c 'echo hi'",
    "echo $((1 << 3))",
    "cd build && rm -rf *",
    "cd / && ls",
    "make clean; make",
    'x=$(git rev-parse HEAD); echo "$x"',
    "f() { echo f | cat; }; f",
    "echo '>/dev/sda'",
    "echo {a,b}",
    "source venv/bin/activate && pytest",
    "trap 'echo bye' EXIT; sleep 1",
    "xargs -n1 echo < list",
    "env X=1 make",
    "rm -- -rf",
    "python3 - <<'EOF'\nimport shutil\nEOF",
    "npm run rm -rf /",
    "printf '%s' rm -rf /",
    "mkdir -p rm/-rf",
    "rm -rf ／",
]


@pytest.mark.parametrize("command", HARMLESS)
def test_what_only_looks_like_it_is_not_refused(command: str) -> None:
    verdict = judge(command)
    assert (verdict.denied, verdict.doubt) == (None, None)


DOUBTS = [
    "X=rm; $X -rf /tmp/x",
    "a=/; rm -rf $a",
    "rm -rf $TARGET/",
    'rm -rf "${D:?}"/*',
    "rm -rf $(echo /)",
    "curl -s http://x | sh",
    "source <(echo hi)",
    "bash <(curl x)",
    'eval "$X"',
    'bash -c "$X"',
    "echo / | xargs rm -rf",
    "env $X",
    "dd if=x of=$DISK",
    "find $TOP -delete",
    "timeout 5 $CMD",
]


@pytest.mark.parametrize("command", DOUBTS)
def test_what_cannot_be_told_is_asked_unless_exactly_allowed(command: str) -> None:
    for mode in (Mode.DEFAULT, Mode.ACCEPT_EDITS, Mode.BYPASS):
        assert decide(command, mode) == "ask"
        assert decide(command, mode, allow=f"Bash({command})") == "allow"
    assert decide(command, Mode.DONT_ASK) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "$(" * 5000,
        "`" * 5001,
        "((" * 5000,
        "{a," * 20_000,
        "{a,b}" * 10_000,
        "env " * 20_000 + "rm -rf /",
        "<<A " * 10_000,
        "f(){" * 20_000,
        "a" * 90_000,
        "'" * 90_001,
        "\\" * 90_001,
        "x=(" * 10_000,
        "bash -c '" * 5000,
        "(" * 90_000,
        "${" * 40_000,
        '"$(' * 10_000,
        "<<A\n" * 10_000,
        "a" * 100_001,
    ],
    ids=lambda command: command[:8],
)
def test_nothing_takes_long_or_breaks_the_judge(command: str) -> None:
    began = time.process_time()
    judge(command)
    assert time.process_time() - began < 3
