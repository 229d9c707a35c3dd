"""How a command line becomes a job."""

import io
import json
from pathlib import Path

import pytest

from celeriac.cli import prompt_first, wants_json
from celeriac.common.contract.errors import BadReplay, ServerUnreachable, UsageError
from celeriac.common.contract.task import Limits, Mode, SessionSpec
from celeriac.common.settings import Settings
from celeriac.coordinator.commands import options
from celeriac.coordinator.jobs import JobOptions, prepare, title_of
from celeriac.coordinator.servers import resolve_url, shown

SETTINGS = Settings(home=Path("/nowhere"))
REPLAY = '{"v":1,"job":{"prompt":"scripted","mode":"plan","allowed_tools":["Bash(make)"],"limits":{"turns":7}}}'


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("Read", ["Read"]),
        ("Read,Write", ["Read", "Write"]),
        ("Read Write, Edit", ["Read", "Write", "Edit"]),
        ("Bash(git log, x),Read", ["Bash(git log, x)", "Read"]),
        ('Bash(python -c "print(1, 2)") Read', ['Bash(python -c "print(1, 2)")', "Read"]),
        (" , ", []),
    ],
)
def test_rules_are_split_outside_parentheses(text: str, rules: list[str]) -> None:
    assert list(options.split_rules(text)) == rules


@pytest.mark.parametrize("text", ["Bash(x", "Bash)x("])
def test_parentheses_must_match(text: str) -> None:
    with pytest.raises(UsageError, match="parentheses"):
        list(options.split_rules(text))


def test_the_first_word_p_means_run() -> None:
    assert prompt_first(["-p", "hi", "--model", "m"]) == ["run", "hi", "--model", "m"]
    assert prompt_first(["--output-format", "json", "--print", "hi"]) == ["run", "--output-format", "json", "hi"]
    assert prompt_first(["send", "s-1", "-p"]) == ["send", "s-1", "-p"]


def test_json_is_noticed_on_a_line_that_cannot_be_parsed() -> None:
    assert wants_json(["run", "--bad", "--output-format", "json"])
    assert wants_json(["run", "--output-format=stream-json"])
    assert not wants_json(["run", "--output-format", "text"])


def test_piped_input_is_bounded_and_must_be_text() -> None:
    assert options.decode_stdin(io.BytesIO("hé".encode())) == "hé"
    with pytest.raises(UsageError, match="10 MB"):
        options.decode_stdin(io.BytesIO(b"x" * (options.STDIN_BYTES + 1)))
    with pytest.raises(UsageError, match="UTF-8"):
        options.decode_stdin(io.BytesIO(b"\xff"))


def test_a_job_takes_what_is_not_given_from_its_replay(tmp_path: Path) -> None:
    task = prepare(None, JobOptions(replay=REPLAY, cwd=tmp_path), SETTINGS).task
    assert isinstance(task.spec, SessionSpec)
    assert task.spec.prompt == "scripted"
    assert (task.mode, task.tools, task.limits) == (Mode.PLAN, ("Bash(make)",), Limits(turns=7))
    given = JobOptions(replay=REPLAY, cwd=tmp_path, mode=Mode.DEFAULT, allowed_tools=("Read",), max_turns=2)
    task = prepare("mine", given, SETTINGS).task
    assert (task.title, task.mode, task.tools, task.limits.turns) == ("mine", Mode.DEFAULT, ("Read",), 2)


def test_a_key_decides_the_session_id(tmp_path: Path) -> None:
    def ids(key: str | None) -> set[str]:
        return {prepare("x", JobOptions(cwd=tmp_path, idempotency_key=key), SETTINGS).task.task_id for _ in range(2)}

    assert len(ids("k")) == 1
    assert len(ids(None)) == 2


@pytest.mark.parametrize("prompt", [None, "", " \n\t"])
def test_an_empty_prompt_is_refused(prompt: str | None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        prepare(prompt, JobOptions(cwd=tmp_path), SETTINGS)


def test_other_bad_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1048577 bytes"):
        prepare("x" * (SETTINGS.limits.prompt_bytes + 1), JobOptions(cwd=tmp_path), SETTINGS)
    with pytest.raises(UsageError, match="UTF-8"):
        prepare("\udcff", JobOptions(cwd=tmp_path), SETTINGS)
    with pytest.raises(UsageError, match="does not exist"):
        prepare("x", JobOptions(cwd=tmp_path / "none"), SETTINGS)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a folder"):
        prepare("x", JobOptions(cwd=tmp_path / "file"), SETTINGS)
    with pytest.raises(BadReplay, match="line 1"):
        prepare("x", JobOptions(cwd=tmp_path, replay="nonsense"), SETTINGS)


def test_a_title_is_one_short_line() -> None:
    assert title_of("\n  Fix   the bug\nand more") == "Fix the bug"
    assert len(title_of("x" * 500)) == 72


def test_the_server_is_found_in_order(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match="start one with"):
        resolve_url(None, tmp_path)
    up = tmp_path / "up.json"
    up.write_text(json.dumps({"url": "redis://up", "pid": 1, "started": 0}))
    assert resolve_url(None, tmp_path) == "redis://up"
    assert resolve_url("redis://named", tmp_path) == "redis://named"
    up.write_text(json.dumps({"url": "redis://up", "pid": 2**22 + 1, "started": 0}))
    with pytest.raises(ServerUnreachable):
        resolve_url(None, tmp_path)


def test_a_bad_url_is_refused_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_url("http://user:hunter2@host", tmp_path)
    assert "hunter2" not in str(caught.value)
    assert shown("redis://user:hunter2@host/0") == "redis://host/0"


def test_a_limit_that_cannot_be_kept_is_refused_and_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="US dollars"):
        prepare("x", JobOptions(cwd=tmp_path, limits=Limits(usd=1.0)), SETTINGS)
