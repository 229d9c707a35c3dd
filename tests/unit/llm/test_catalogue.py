"""What is known of the models, and what their tokens cost."""

import pytest

from celeriac.common.contract.models import ModelFacts, NamedModel, Price
from celeriac.common.contract.task import Usage
from celeriac.common.llm.catalogue import UnknownModel, facts_of

PRICE = Price(input=2.0, output=10.0, cache_write=2.5, cache_read=0.2)


def test_a_dated_name_has_the_facts_of_its_model() -> None:
    assert facts_of("claude-haiku-4-5-20251001") == facts_of("claude-haiku-4-5")


def test_an_unknown_model_says_what_is_known_and_what_to_do() -> None:
    with pytest.raises(UnknownModel, match=r"claude-sonnet-5-5.*llm\.models"):
        facts_of("gpt-nano")


def test_the_settings_add_a_model_and_win_over_the_catalogue() -> None:
    mine = NamedModel(name="gpt-nano", window=32_000, price=PRICE)
    other = NamedModel(name="claude-haiku-4-5", window=1000)
    assert facts_of("gpt-nano", [other, mine]).window == 32_000
    assert facts_of("claude-haiku-4-5", [other, mine]) == other


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Usage(input_tokens=1_000_000), 2.0),
        (Usage(output_tokens=500_000), 5.0),
        (Usage(cache_creation_input_tokens=400_000, cache_read_input_tokens=1_000_000), 1.2),
        (Usage(tool_uses=7, turns=3), 0.0),
    ],
)
def test_each_kind_of_token_has_its_price(usage: Usage, dollars: float) -> None:
    assert PRICE.of(usage) == pytest.approx(dollars)


def test_facts_that_are_not_given_are_those_of_a_small_model() -> None:
    assert ModelFacts().window == 200_000
    assert ModelFacts().price is None
