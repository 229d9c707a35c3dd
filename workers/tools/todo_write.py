"""TodoWrite: the run's list of what is to be done."""

from typing import Annotated, Literal

from pydantic import Field

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Value
from celeriac.common.contract.tool_names import TODO_WRITE
from celeriac.common.tools.base import Described, Restart, ToolContext, ToolInput, ToolResult, describe

Status = Literal["pending", "in_progress", "completed"]
MAX_TODOS = 200


NUDGE_TURNS = 3
"""Turns in a row without TodoWrite while todos are open, before the model is reminded (SPEC 5)."""


class Todo(Value):
    """One thing to do."""

    content: Annotated[str, Field(min_length=1, max_length=2000, description="What is to be done, as an order")]
    status: Status
    activeForm: Annotated[str, Field(max_length=2000, description="The same as a doing, such as `Running tests`")] = ""  # noqa: N815 - the name that models know


class TodoList(Value):
    """What `ctx.state` holds under "TodoWrite"."""

    todos: tuple[Todo, ...] = ()


class TodoWriteInput(ToolInput):
    """See todo_write.md."""

    todos: Annotated[
        tuple[Todo, ...], Field(max_length=MAX_TODOS, description="The whole list, which replaces the old one")
    ]


class TodoWrite(Described[TodoWriteInput]):
    """Keeps the list. It changes nothing but the run's own memory, so it counts as read-only."""

    wire_name = TODO_WRITE
    input = TodoWriteInput
    description = describe(__file__)
    restart = Restart.RERUN
    timeout_s = 5.0

    def read_only(self, i: TodoWriteInput) -> bool:
        """No barrier is needed."""
        return True

    def nudge(self, memory: dict[str, Value], idle_turns: int) -> str | None:
        """After NUDGE_TURNS turns without an update while entries are open."""
        found = memory.get(TODO_WRITE)
        todos = found.todos if isinstance(found, TodoList) else ()
        left = [todo.content for todo in todos if todo.status != "completed"]
        if idle_turns < NUDGE_TURNS or not left:
            return None
        return f"Reminder: your todo list has {len(left)} open entries, the first is: {left[0]}. Keep it up to date."

    def recall(self, meta: JsonObject, memory: dict[str, Value]) -> None:
        """The list."""
        memory[TODO_WRITE] = TodoList.model_validate(meta)

    async def run(self, i: TodoWriteInput, ctx: ToolContext) -> ToolResult:
        """Replace the list."""
        todos = TodoList(todos=i.todos)
        ctx.state[TODO_WRITE] = todos
        counts = {
            status: sum(todo.status == status for todo in i.todos) for status in ("completed", "in_progress", "pending")
        }
        told = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
        return ToolResult(f"The list has {len(i.todos)} entries: {told}.", meta=todos)
