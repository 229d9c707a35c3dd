"""The system prompt from its sections, the stable part first so that it is a cacheable prefix (SPEC 5)."""

from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import text_block


class TextSections:
    """Sections that do not change within a run."""

    def __init__(self, *texts: str) -> None:
        """Texts in order; empty ones are left out, since the API refuses empty blocks."""
        self._blocks = tuple(text_block(text.strip()) for text in texts if text.strip())

    def render(self) -> tuple[JsonObject, ...]:
        """The same blocks every time."""
        return self._blocks
