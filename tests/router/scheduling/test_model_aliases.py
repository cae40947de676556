"""What aliases stand for, and how they are listed beside the models of the fleet."""

from __future__ import annotations

from router.config.sections.models import AliasConfig
from router.fleet.engine_facts import ModelCard
from router.scheduling.model_aliases import ModelAliases

LLAMA, QWEN = ModelCard("llama", "/m/llama", None, 4096), ModelCard("qwen", "/m/qwen", None, 8192)


def aliases(**names: str) -> ModelAliases:
    return ModelAliases({name: AliasConfig(to=model) for name, model in names.items()})


def test_an_alias_is_found_by_its_name_and_chooses_its_model() -> None:
    found = aliases(chat="llama").find("chat")
    assert found is not None
    choice = aliases(chat="llama").choose(found)
    assert (choice.alias, choice.model, choice.other) == ("chat", "llama", None)
    assert aliases(chat="llama").find("llama") is None
    assert aliases(chat="llama").find(None) is None


def test_aliases_are_listed_with_the_model_that_they_stand_for() -> None:
    cards = aliases(chat="qwen", gone="third").add_cards([LLAMA, QWEN])
    assert cards == [LLAMA, QWEN, ModelCard("chat", "qwen", None, 8192)]


def test_an_alias_with_a_models_name_takes_its_place() -> None:
    assert aliases(llama="qwen").add_cards([LLAMA, QWEN])[0] == ModelCard("llama", "qwen", None, 8192)
    assert aliases(llama="third").add_cards([LLAMA]) == []
