"""Bad input: one clear line, the right exit code, nothing half-created. Through the console script."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from celeriac.common.substrate.embedded import EmbeddedServer
from celeriac.common.testing.command import CommandLine, Said

UNKNOWN = "s-0000000000000"
NOBODY = "redis://127.0.0.1:1/0"
REPLAY = '{"v":1,"job":{}}\n'


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    async with EmbeddedServer.start(tmp_path / "server") as started:
        yield started.url


@pytest.fixture
def alone(tmp_path: Path) -> CommandLine:
    """A command line where no server is known."""
    work = tmp_path / "work"
    work.mkdir()
    return CommandLine(work, {"HOME": str(tmp_path), "CELERIAC_HOME": str(tmp_path / "home")})


@pytest.fixture
def connected(alone: CommandLine, server: str) -> CommandLine:
    return CommandLine(alone.cwd, {**alone.environ, "CELERIAC_REDIS_URL": server})


def is_one_line(said: Said, code: int, *words: str) -> None:
    assert said.code == code, said
    assert said.err.startswith("celeriac: ")
    assert said.err.count("\n") == 1, said.err
    for word in words:
        assert word in said.err


@pytest.mark.parametrize("command", ["show", "follow", "transcript", "result", "stop"])
def test_an_unknown_id_is_not_found(connected: CommandLine, command: str) -> None:
    is_one_line(connected.run(command, UNKNOWN), 5, UNKNOWN, "celeriac list")


def test_a_message_to_an_unknown_id_is_not_found(connected: CommandLine) -> None:
    is_one_line(connected.run("send", UNKNOWN, "hello"), 5, UNKNOWN)
    assert connected.run("list").out == ""


def test_a_text_that_is_no_id_is_a_usage_error_even_without_a_server(alone: CommandLine) -> None:
    is_one_line(alone.run("show", "s-zzz"), 5, "'s-zzz' is not a task id")


def test_where_no_server_is_named_a_command_says_how_to_start_one(alone: CommandLine) -> None:
    for arguments in (["list"], ["show", UNKNOWN], ["submit", "hi"], ["worker"], ["coordinator"], ["flower"]):
        is_one_line(alone.run(*arguments), 4, "no server is known", "start one with")


@pytest.mark.parametrize("arguments", [["list"], ["show", UNKNOWN], ["submit", "hi"], ["worker"]])
def test_a_client_waits_a_moment_for_a_server_that_may_be_restarting(alone: CommandLine, arguments: list[str]) -> None:
    said = alone.run(*arguments, CELERIAC_REDIS_URL=NOBODY)
    waiting, last = said.err.splitlines()
    assert f"the server at {NOBODY} does not answer; waiting up to 5 s" in waiting
    is_one_line(Said(said.code, said.out, f"{last}\n"), 4, "127.0.0.1:1", "start one with")


def test_a_url_of_something_else_is_refused(alone: CommandLine) -> None:
    for command in (["list"], ["show", UNKNOWN]):
        is_one_line(alone.run(*command, "--redis-url", "http://user:hunter2@x"), 2, "is not a Redis URL")


def test_a_missing_key_is_told_before_anything_is_started(alone: CommandLine, tmp_path: Path) -> None:
    is_one_line(alone.run("run", "hi"), 2, "ANTHROPIC_API_KEY", "--replay")
    is_one_line(alone.run("-p", "hi"), 2, "ANTHROPIC_API_KEY")
    assert not (tmp_path / "home").exists()


def test_bad_flags_and_commands_are_usage_errors(alone: CommandLine) -> None:
    is_one_line(alone.run("run", "hi", "--no-such-flag"), 2, "--no-such-flag", "celeriac run --help")
    is_one_line(alone.run("run", "hi", "--permission-mode", "wild"), 2, "permission-mode", "acceptEdits")
    is_one_line(alone.run("run", "hi", "--max-turns", "0"), 2, "max-turns")
    is_one_line(alone.run("run", "hi", "--allowed-tools", "Bash(x"), 2, "parentheses")
    is_one_line(alone.run("frobnicate"), 2, "frobnicate", "celeriac --help")


def test_bad_settings_name_file_and_key(alone: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "home" / "settings.json"
    file.parent.mkdir()
    file.write_text('{"llm": {"modle": "x"}}')
    is_one_line(alone.run("submit", "hi"), 2, f"{file}: llm.modle")
    file.unlink()
    is_one_line(alone.run("show", UNKNOWN, CELERIAC_LEASE_SECONDS="soon"), 2, "CELERIAC_LEASE_SECONDS: lease.seconds")


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_bad_job_creates_nothing(connected: CommandLine, command: str, tmp_path: Path) -> None:
    def refused(*arguments: str, stdin: str | bytes = "", words: tuple[str, ...]) -> None:
        is_one_line(connected.run(command, *arguments, stdin=stdin, CELERIAC_PROMPT_BYTES="1000"), 2, *words)

    bad = tmp_path / "bad.jsonl"
    bad.write_text(REPLAY + '{"path":"s"}\n')
    empty = tmp_path / "empty.jsonl"
    empty.write_text(REPLAY)
    refused("", words=("prompt is empty",))
    refused("   ", words=("prompt is empty",))
    refused(words=("prompt is empty",))
    refused("-", words=("prompt is empty",))
    refused("--replay", str(empty), words=("prompt is empty",))
    refused("x" * 1001, words=("1001 bytes", "limits.prompt_bytes"))
    refused(stdin="x" * 1001, words=("1001 bytes",))
    refused(stdin=b"\xff\xfe", words=("not UTF-8",))
    refused(stdin="x" * 10_000_001, words=("10 MB",))
    refused("hi", "--replay", str(bad), words=(str(bad), "line 2"))
    refused("hi", "--replay", str(tmp_path / "none.jsonl"), words=("none.jsonl",))
    refused("hi", "--cwd", str(tmp_path / "none"), words=("does not exist", "--cwd"))
    refused("hi", "--cwd", str(bad), words=("not a folder",))
    assert connected.run("list").out == ""
    assert not (tmp_path / "home").exists()


def test_one_mebibyte_is_the_limit_of_a_prompt(connected: CommandLine) -> None:
    assert connected.run("submit", stdin="x" * (1 << 20)).code == 0
    is_one_line(connected.run("submit", stdin="x" * ((1 << 20) + 1)), 2, "1048577 bytes")
    assert len(connected.run("list").out.splitlines()) == 1


def test_a_wanted_json_document_comes_even_for_errors(connected: CommandLine) -> None:
    for code, arguments in ((5, ["result", UNKNOWN]), (2, ["run", "hi", "--no-such-flag"]), (2, ["submit", ""])):
        said = connected.run(*arguments, "--output-format", "json")
        document = json.loads(said.out)
        assert document["is_error"] is True
        assert document["exit_code"] == said.code == code
        assert document["error"] in said.err
        assert said.err.count("\n") == 1


def test_a_key_that_was_used_for_something_else_is_refused(connected: CommandLine) -> None:
    first = connected.run("submit", "one", "--idempotency-key", "k")
    assert connected.run("submit", "one", "--idempotency-key", "k").out == first.out
    is_one_line(connected.run("submit", "two", "--idempotency-key", "k"), 2, "another request", first.out.strip())


def test_a_submitted_job_is_listed_shown_and_stopped(connected: CommandLine) -> None:
    task = connected.run("submit", "Fix the bug").out.strip()
    assert json.loads(connected.run("list", "--output-format", "json").out)[0]["session_id"] == task
    assert "Fix the bug" in connected.run("show", task).out
    early = connected.run("result", task, "--no-wait")
    assert (early.code, early.out) == (1, "")
    assert connected.run("stop", task).out == f"{task}  stopped  Fix the bug\n"
    assert connected.run("stop", task).out == f"{task}  already finished  Fix the bug\n"
    assert connected.run("result", task).code == 6
    assert connected.run("follow", task).code == 6


def test_validation_has_three_exit_codes(alone: CommandLine, tmp_path: Path) -> None:
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body))
    assert alone.run("dev", "validate", str(file)).code == 0
    file.write_text(json.dumps({**body, "messages": []}))
    said = alone.run("dev", "validate", str(file))
    assert said.code == 1
    assert said.out.startswith("refused: messages")
    file.write_text("{")
    is_one_line(alone.run("dev", "validate", str(file)), 2, "body.json")
    is_one_line(alone.run("dev", "validate", str(tmp_path / "none")), 2, "none")


def test_notifications_are_rendered_and_parsed(alone: CommandLine) -> None:
    told = {"task_id": "a-1", "status": "killed", "summary": "s", "result": "a ]]> <b> & \x07"}
    xml = alone.run("dev", "notification", "render", stdin=json.dumps(told))
    back = alone.run("dev", "notification", "parse", stdin=xml.out)
    assert json.loads(back.out) == {**told, "result": "a ]]> <b> & \ufffd"}
    is_one_line(alone.run("dev", "notification", "parse", stdin="<x/>"), 1, "not a notification")
    is_one_line(alone.run("dev", "notification", "render", stdin="{}"), 2, "task_id")
