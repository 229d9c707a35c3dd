"""ARCHITECTURE.md's twelve hops are true: each link leads to a file, and each name exists in it."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOP = re.compile(r"^\d+\. \[`(?P<name>[^`]+)`\]\((?P<file>[^)]+)\)", re.MULTILINE)
HOPS = [(match["name"], match["file"]) for match in HOP.finditer((ROOT / "ARCHITECTURE.md").read_text())]


def test_there_are_twelve() -> None:
    assert len(HOPS) == 12


@pytest.mark.parametrize(("name", "file"), HOPS)
def test_a_hop_is_where_the_page_says(name: str, file: str) -> None:
    path = ROOT / file
    assert path.is_file()
    if path.parent.name == "celeriac":
        return
    module = importlib.import_module("celeriac." + file.removesuffix(".py").replace("/", "."))
    owner: object = module
    for part in name.split("."):
        owner = getattr(owner, part, owner if part in module.__name__.split(".") else None)
        assert owner is not None, f"{name} is not in {file}"
