"""The console: how tasks read, and how it is closed to strangers."""

from dataclasses import dataclass

import pytest
from pydantic import SecretStr
from tornado.options import options

from celeriac.common.contract.kinds import TITLES, Kind
from celeriac.common.settings import FlowerSettings
from celeriac.ops.flower.console import configure
from celeriac.ops.flower.format import KIND_WORDS, format_task
from celeriac.ops.ports import ADDRESS


@dataclass
class Task:
    name: str | None
    args: str | None
    kwargs: str | None = "{}"


@pytest.mark.parametrize("args", ["agent: Fix: the bug", "'agent: Fix: the bug'", "('agent: Fix: the bug',)"])
def test_a_task_is_shown_by_kind_and_title(args: str) -> None:
    task = format_task(Task("celeriac.run_task", args))
    assert (task.name, task.args, task.kwargs) == ("agent: Fix: the bug", "Fix: the bug", "")


@pytest.mark.parametrize("args", [None, "", "[1]", "no kind: here"])
def test_other_tasks_keep_their_name(args: str | None) -> None:
    assert format_task(Task("other", args)).name == "other"


def test_every_kind_has_its_word() -> None:
    assert {TITLES[kind] for kind in Kind} == KIND_WORDS


def test_it_listens_on_loopback_and_asks_for_a_password() -> None:
    made_up = configure(FlowerSettings())
    assert options.address == ADDRESS == "127.0.0.1"
    assert options.basic_auth == [f"celeriac:{made_up}"]
    assert made_up != configure(FlowerSettings())
    assert configure(FlowerSettings(user="me", password=SecretStr("secret"))) == "secret"
    assert options.basic_auth == ["me:secret"]
