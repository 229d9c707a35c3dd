"""Calls tools as a model would, in one run, without a loop around them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue, ValidationError

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Mode, Value
from celeriac.common.contract.tool_names import BASH, EDIT, GLOB, GREP, READ, WRITE
from celeriac.common.lifetime.cancel import AbortNode
from celeriac.common.lifetime.cleanup import CleanupRegistry
from celeriac.common.tools.base import AnyTool, OpenWorkspace, ToolContext, ToolResult
from celeriac.common.tools.invoke import explain

TASK = TaskId("a-" + "0" * 26)


@dataclass
class Hands:
    """One run's calls; the state of its tools is kept between them."""

    tools: Iterable[AnyTool]
    workspace: OpenWorkspace
    state: dict[str, Value] = field(default_factory=dict)
    cancel: AbortNode = field(default_factory=AbortNode)
    shown: list[str] = field(default_factory=list)
    """Live output."""

    @property
    def root(self) -> Path:
        """The workspace."""
        return self.workspace.root

    async def call(self, name: str, raw: JsonObject) -> ToolResult:
        """Validate and run, as the middleware would."""
        tool = next(tool for tool in self.tools if tool.wire_name == name)
        try:
            validated = tool.input.model_validate(raw)
        except ValidationError as error:
            return ToolResult.error(explain(name, error))
        return await tool.run(validated, self.context())

    def context(self) -> ToolContext:
        """What a call is given."""

        async def emit(text: str) -> None:
            self.shown.append(text)

        return ToolContext(
            task_id=TASK,
            run=1,
            turn=1,
            call_id="toolu_1",
            cancel=self.cancel,
            emit=emit,
            cleanup=CleanupRegistry(),
            mode=Mode.ACCEPT_EDITS,
            workspace=self.workspace,
            state=self.state,
        )

    async def read(self, file_path: str, **more: JsonValue) -> ToolResult:
        """Read."""
        return await self.call(READ, {"file_path": file_path, **more})

    async def write(self, file_path: str, content: str) -> ToolResult:
        """Write."""
        return await self.call(WRITE, {"file_path": file_path, "content": content})

    async def edit(self, file_path: str, old: str, new: str, *, everywhere: bool = False) -> ToolResult:
        """Edit."""
        raw: JsonObject = {"file_path": file_path, "old_string": old, "new_string": new, "replace_all": everywhere}
        return await self.call(EDIT, raw)

    async def read_and_edit(self, file_path: str, old: str, new: str) -> ToolResult:
        """Read, then Edit."""
        await self.read(file_path)
        return await self.edit(file_path, old, new)

    async def glob(self, pattern: str, path: str = ".") -> ToolResult:
        """Glob."""
        return await self.call(GLOB, {"pattern": pattern, "path": path})

    async def grep(self, pattern: str, **more: JsonValue) -> ToolResult:
        """Grep."""
        return await self.call(GREP, {"pattern": pattern, **more})

    async def bash(self, command: str, **more: JsonValue) -> ToolResult:
        """Bash."""
        return await self.call(BASH, {"command": command, **more})
