"""Each file here is one fault that users of systems like this one have met (CASES.md): its example and its kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.common.testing.hands import Hands
from celeriac.workers.shell.commands import Commands
from celeriac.workers.tools import worker_tools
from celeriac.workers.workspace import Workspace


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    root = tmp_path / "ws"
    root.mkdir()
    workspace = Workspace(root)
    yield Hands(worker_tools(Commands(None), {}), workspace)
    workspace.close()
