"""A workspace in a temporary folder, once per way of confining, and a context for calls."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import ValidationError

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Mode, Value
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.lifetime.cleanup import CleanupRegistry
from celeriac.common.tools.base import AnyTool, ToolContext, ToolResult
from celeriac.common.tools.invoke import explain
from celeriac.workers.tools.edit import Edit
from celeriac.workers.tools.glob import Glob
from celeriac.workers.tools.grep import Grep
from celeriac.workers.tools.read import Read
from celeriac.workers.tools.write import Write
from celeriac.workers.workspace import Workspace


async def _emit(text: str) -> None:
    """Nobody watches."""


@dataclass
class Hands:
    """Calls tools as a model would, in one run."""

    workspace: Workspace
    state: dict[str, Value] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.workspace.root

    async def call(self, tool: AnyTool, raw: JsonObject) -> ToolResult:
        ctx = ToolContext(
            task_id=TaskId("a-" + "0" * 26),
            run=1,
            turn=1,
            call_id="toolu_1",
            cancel=AbortNode(),
            emit=_emit,
            cleanup=CleanupRegistry(),
            mode=Mode.ACCEPT_EDITS,
            workspace=self.workspace,
            state=self.state,
        )
        try:
            validated = tool.input.model_validate(raw)
        except ValidationError as error:
            return ToolResult.error(explain(tool.wire_name, error))
        return await tool.run(validated, ctx)

    async def read(self, file_path: str, **more: int) -> ToolResult:
        return await self.call(Read(), {"file_path": file_path, **more})

    async def write(self, file_path: str, content: str) -> ToolResult:
        return await self.call(Write(), {"file_path": file_path, "content": content})

    async def edit(self, file_path: str, old: str, new: str, *, everywhere: bool = False) -> ToolResult:
        raw: JsonObject = {"file_path": file_path, "old_string": old, "new_string": new, "replace_all": everywhere}
        return await self.call(Edit(), raw)

    async def read_and_edit(self, file_path: str, old: str, new: str, *, everywhere: bool = False) -> ToolResult:
        assert not (await self.read(file_path)).is_error
        return await self.edit(file_path, old, new, everywhere=everywhere)

    async def glob(self, pattern: str, path: str = ".") -> ToolResult:
        return await self.call(Glob(), {"pattern": pattern, "path": path})

    async def grep(self, pattern: str, **more: object) -> ToolResult:
        raw: JsonObject = {"pattern": pattern}
        raw |= {name: value for name, value in more.items() if isinstance(value, str | int)}
        return await self.call(Grep(), raw)


@pytest.fixture(params=[None, False], ids=["kernel", "walk"])
def hands(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hands]:
    root = tmp_path / "ws"
    root.mkdir()
    workspace = Workspace(root, openat2=request.param)
    yield Hands(workspace)
    workspace.close()
