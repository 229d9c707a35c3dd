"""Settings: the order of layers, the union of deny, and errors that name place, key and remedy."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from celeriac.common.contract.errors import BadSettings
from celeriac.common.contract.json import JsonValue
from celeriac.common.contract.task import Mode
from celeriac.common.settings import Settings, load


class Place:
    """A home and a project in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self.environ = {"CELERIAC_HOME": str(self.home)}

    def write(self, name: str, document: object) -> Path:
        folder = {"user": self.home, "project": self.project / ".celeriac", "local": self.project / ".celeriac"}[name]
        file = folder / ("settings.local.json" if name == "local" else "settings.json")
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return file

    def load(self, flags: Mapping[str, JsonValue] | None = None, **environ: str) -> Settings:
        return load(flags or {}, cwd=self.project, environ={**self.environ, **environ})

    def error(self, flags: Mapping[str, JsonValue] | None = None, **environ: str) -> str:
        with pytest.raises(BadSettings) as caught:
            self.load(flags, **environ)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_defaults_are_those_of_the_specification(place: Place) -> None:
    settings = place.load()
    assert settings.home == place.home
    assert (settings.lease.seconds, settings.supervisor.scan_seconds) == (15.0, 1.0)
    assert (settings.supervisor.max_attempts, settings.supervisor.max_attempts_total) == (3, 20)
    assert settings.limits.prompt_bytes == 1024 * 1024
    assert settings.permissions.mode is Mode.ACCEPT_EDITS
    assert settings.redis.url is None
    assert settings.llm.api_key is None


def test_each_layer_wins_over_the_one_below(place: Place) -> None:
    def model(chosen: str = "") -> str:
        return place.load(CELERIAC_MODEL=chosen).llm.model

    place.write("user", {"llm": {"model": "user"}})
    assert model() == "user"
    place.write("project", {"llm": {"model": "project"}})
    assert model() == "project"
    place.write("local", {"llm": {"model": "local"}})
    assert model() == "local"
    assert model("environment") == "environment"
    assert place.load({"llm.model": "flag"}, CELERIAC_MODEL="environment").llm.model == "flag"


def test_a_layer_changes_only_what_it_names(place: Place) -> None:
    place.write("user", {"llm": {"max_tokens": 5, "model": "user"}})
    place.write("project", {"llm": {"model": "project"}})
    settings = place.load()
    assert (settings.llm.max_tokens, settings.llm.model) == (5, "project")


def test_deny_is_the_union_of_all_layers_and_allow_is_not(place: Place) -> None:
    place.write("user", {"permissions": {"deny": ["Bash(rm *)", "Read"], "allow": ["Read"]}})
    place.write("project", {"permissions": {"deny": ["Read", "Write"], "allow": ["Glob"]}})
    permissions = place.load().permissions
    assert permissions.deny == ("Bash(rm *)", "Read", "Write")
    assert permissions.allow == ("Glob",)


def test_variables_are_read_and_empty_ones_do_not_count(place: Place) -> None:
    settings = place.load(
        CELERIAC_REDIS_URL="redis://h/1",
        CELERIAC_LEASE_SECONDS="2",
        CELERIAC_STANDIN="1",
        CELERIAC_WORKER_LABELS="gpu, big",
        CELERIAC_MODEL="",
        ANTHROPIC_API_KEY="sk-secret",
    )
    assert settings.redis.url == "redis://h/1"
    assert settings.lease.seconds == 2.0
    assert settings.llm.standin
    assert settings.worker.labels == ("gpu", "big")
    assert "model" not in settings.llm.model_fields_set
    assert settings.secrets() == ("sk-secret",)
    assert "sk-secret" not in repr(settings) + settings.document()


def test_a_flag_that_was_not_given_changes_nothing(place: Place) -> None:
    assert place.load({"redis.url": None}, CELERIAC_REDIS_URL="redis://h").redis.url == "redis://h"


def test_errors_name_the_place_the_key_and_the_remedy(place: Place) -> None:
    assert "environment variable CELERIAC_LEASE_SECONDS: lease.seconds: " in place.error(CELERIAC_LEASE_SECONDS="soon")
    assert "option --lease-seconds: lease.seconds: " in place.error({"lease.seconds": 0})
    file = place.write("project", {"llm": {"modle": "x"}})
    assert place.error() == f"{file}: llm.modle is not a setting; remove it or correct its spelling"
    place.write("project", {"worker": {"labels": ["ok", "Not Ok"]}})
    assert f"{file}: worker.labels: " in place.error()
    place.write("project", "{oops")
    assert f"{file}: cannot be read as JSON" in place.error()
    place.write("project", [1])
    assert f"{file}: must hold one JSON object" in place.error()
    place.write("project", {"llm": "x"})
    assert f"{file}: llm: " in place.error()


def test_a_value_where_another_layer_has_a_group_is_an_error(place: Place) -> None:
    place.write("user", {"llm": "x"})
    assert "llm must be an object" in place.error(CELERIAC_MODEL="m")


@pytest.mark.parametrize(
    ("name", "document", "word"),
    [
        ("user", {"llm": {"api_key": "sk-1234"}}, "ANTHROPIC_API_KEY"),
        ("user", {"home": "/elsewhere"}, "CELERIAC_HOME"),
        ("project", {"llm": {"base_url": "http://evil"}}, "repository"),
        ("local", {"llm": {"standin": True}}, "repository"),
        ("project", {"permissions": {"mode": "bypassPermissions"}}, "--permission-mode"),
    ],
)
def test_some_keys_are_not_taken_from_some_files(place: Place, name: str, document: object, word: str) -> None:
    place.write(name, document)
    message = place.error()
    assert word in message
    assert "sk-1234" not in message


def test_processes_without_a_project_read_no_project_files(place: Place) -> None:
    place.write("project", {"llm": {"model": "project"}})
    assert load({}, cwd=None, environ=place.environ).llm.model != "project"


def test_a_settings_file_can_be_handed_to_a_child_process(place: Place, tmp_path: Path) -> None:
    place.write("project", {"llm": {"model": "project"}, "permissions": {"deny": ["Read"]}})
    parent = place.load(ANTHROPIC_API_KEY="sk-secret")
    file = tmp_path / "handed.json"
    file.write_text(parent.document())
    child = load({}, cwd=None, environ={**place.environ, "CELERIAC_SETTINGS": str(file)})
    assert child.llm.model == "project"
    assert child.permissions.deny == ("Read",)
    assert "there is no file" in place.error(CELERIAC_SETTINGS="/nowhere.json")


def test_commands_inherit_an_allow_list_only() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "LC_1": "x",
        "ANTHROPIC_API_KEY": "k",
        "CELERIAC_REDIS_URL": "u",
        "TZ": "UTC",
    }
    assert Settings.tool_environment(environ) == {"PATH": "/bin", "LC_ALL": "C", "TZ": "UTC"}
