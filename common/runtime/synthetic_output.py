"""SyntheticOutput: how a run gives its result on purpose (SPEC 3). The loop carries it out; here are its input and
its words."""

from enum import StrEnum
from typing import Self

import orjson
from pydantic import model_validator

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.tool_names import SYNTHETIC_OUTPUT
from celeriac.common.tools.base import Described, Restart, ToolContext, ToolInput, ToolResult, describe


class OutputKind(StrEnum):
    """An answer ends the run; a question waits for a person."""

    ANSWER = "answer"
    QUESTION = "question"


class SyntheticOutputInput(ToolInput):
    """`result` (text) or `structured` (an object), one of them."""

    result: str | None = None
    structured: JsonObject | None = None
    kind: OutputKind = OutputKind.ANSWER

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.result is None or not self.result.strip()) and self.structured is None:
            raise ValueError("give `result` (a text that is not empty) or `structured` (an object)")
        return self

    def text(self) -> str:
        """The result as text."""
        if self.result is not None and self.result.strip():
            return self.result
        return orjson.dumps(self.structured).decode()


class SyntheticOutput(Described[SyntheticOutputInput]):
    """Stands in the toolbox so that the model is offered it; the loop intercepts every call."""

    wire_name = SYNTHETIC_OUTPUT
    input = SyntheticOutputInput
    description = describe(__file__)
    restart = Restart.RERUN

    def read_only(self, i: SyntheticOutputInput) -> bool:
        """It changes nothing by itself."""
        return True

    async def run(self, i: SyntheticOutputInput, ctx: ToolContext) -> ToolResult:
        """Never reached through the loop; for a direct call, the text itself."""
        return ToolResult(i.text())
