"""What is known of each model. Pure; the data lie in `models.json`, settings may add models and override prices."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from pydantic import TypeAdapter

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.models import ModelFacts, NamedModel

_DATED = re.compile(r"-\d{8}$")
"""A snapshot of a model has its release day behind the name, and the same prices."""


class UnknownModel(UsageError):
    """Nothing is known of this model, so its calls cannot be priced."""


def facts_of(model: str, named: Sequence[NamedModel] = ()) -> ModelFacts:
    """The facts of a model; `named`: those of the settings, which win. Raises UnknownModel, which says what to do."""
    for one in named:
        if one.name == model:
            return one
    known = _known()
    facts = known.get(model) or known.get(_DATED.sub("", model))
    if facts is None:
        names = ", ".join(sorted(known))
        raise UnknownModel(
            f"the model {model!r} is not known; use one of {names}, "
            "or add it with its price to llm.models in the settings"
        )
    return facts


def model_named(model: str, named: Sequence[NamedModel] = ()) -> NamedModel:
    """The same, with its name. Raises UnknownModel."""
    facts = facts_of(model, named)
    return facts if isinstance(facts, NamedModel) else NamedModel(name=model, **facts.__dict__)


@cache
def _known() -> dict[str, ModelFacts]:
    data = files(__package__).joinpath("models.json").read_bytes()
    return TypeAdapter(dict[str, ModelFacts]).validate_json(data)
