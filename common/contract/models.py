"""The facts of a model: window, maximum output, effort levels, thinking, prices. Pure values."""

from typing import Annotated, Literal

from pydantic import Field

from celeriac.common.contract.task import Effort, Usage, Value

MILLION = 1_000_000
"""Prices are per million tokens."""

Dollars = Annotated[float, Field(ge=0)]


class Price(Value):
    """US dollars per million tokens."""

    input: Dollars
    output: Dollars
    cache_write: Dollars
    """Five-minute entries, the only ones that we write."""
    cache_read: Dollars

    def of(self, usage: Usage) -> float:
        """What these tokens cost, in US dollars."""
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_creation_input_tokens * self.cache_write
            + usage.cache_read_input_tokens * self.cache_read
        ) / MILLION


class ModelFacts(Value):
    """One model."""

    window: Annotated[int, Field(ge=1)] = 200_000
    """Tokens of prompt and answer together."""
    max_output: Annotated[int, Field(ge=1)] = 64_000
    efforts: tuple[Effort, ...] = ()
    """Empty: the model takes no effort; it is left out with a warning."""
    thinking: Literal["none", "extended", "adaptive"] = "none"
    price: Price | None = None


class NamedModel(ModelFacts):
    """A model that the settings add, or whose facts they replace as a whole."""

    name: Annotated[str, Field(min_length=1)]
