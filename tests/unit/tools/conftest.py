"""A workspace in a temporary folder, once per way of confining."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.common.testing.hands import Hands
from celeriac.workers.shell.commands import Commands
from celeriac.workers.tools import worker_tools
from celeriac.workers.workspace import Workspace


@pytest.fixture(params=[None, False], ids=["kernel", "walk"])
def hands(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hands]:
    root = tmp_path / "ws"
    root.mkdir()
    workspace = Workspace(root, openat2=request.param)
    yield Hands(worker_tools(Commands(None), {}), workspace)
    workspace.close()
