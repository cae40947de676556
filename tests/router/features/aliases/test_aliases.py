"""What aliases stand for, when they fall back, and how they are listed beside the models of the fleet."""

from __future__ import annotations

from typing import Any

from router.config.schema import FleetConfig, InstanceConfig
from router.config.sections.models import AliasConfig
from router.features.aliases.aliases import Alias, ModelAliases, ModelChoice
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.fleet import Fleet

LLAMA, QWEN = ModelCard("llama", "/m/llama", None, 4096), ModelCard("qwen", "/m/qwen", None, 8192)
SPLIT = {
    "stable": {"model": "llama", "share": 50, "revision": "v1"},
    "canary": {"model": "llama", "share": 50, "revision": "v2"},
}


def a_fleet(**served: str) -> Fleet:
    """Ready instances by name, each with one model, or `model@revision`."""
    fleet = Fleet(FleetConfig())
    for name, model in served.items():
        model, _, revision = model.partition("@")
        fleet.join(InstanceConfig(url=f"http://{name}:1", name=name, revision=revision or None))
        fleet.mark_ready(name, [ModelCard(model, None, None, None)], [0])
    return fleet


def waits(fleet: Fleet, instance: str, waiting: int | None) -> None:
    fleet.apply_metrics(instance, {0: Gauges(1, waiting, None, None, None, None, None)}, 0.0)


def opens(fleet: Fleet, instance: str) -> None:
    (target,) = next(each for each in fleet if each.id == instance).targets.values()
    for _ in range(3):
        target.breaker.on_request_end("unreachable", 0.0)


def aliases(fleet: Fleet | None = None, **configs: Any) -> ModelAliases:
    named = {name: {"to": config} if isinstance(config, str) else config for name, config in configs.items()}
    validated = {name: AliasConfig.model_validate(config) for name, config in named.items()}
    return ModelAliases(validated, fleet or a_fleet())


def find(among: ModelAliases, name: str = "chat") -> Alias:
    alias = among.find(name)
    assert alias is not None
    return alias


def choose(fleet: Fleet, now: float = 0.0, **config: Any) -> ModelChoice:
    among = aliases(fleet, chat=config)
    return among.choose(find(among), now)


def test_an_alias_is_found_by_its_name_and_chooses_its_model() -> None:
    among = aliases(chat="llama")
    choice = among.choose(find(among), 0.0)
    assert (choice.alias, choice.model, choice.other, choice.fallback) == ("chat", "llama", None, None)
    assert among.find("llama") is None
    assert among.find(None) is None


def test_aliases_are_listed_with_the_model_that_they_stand_for() -> None:
    cards = aliases(chat="qwen", gone="third").add_cards([LLAMA, QWEN])
    assert cards == [LLAMA, QWEN, ModelCard("chat", "qwen", None, 8192)]
    falls = aliases(chat={"to": "third", "fallbacks": ["qwen"]}).add_cards([LLAMA, QWEN])
    assert falls[-1] == ModelCard("chat", "qwen", None, 8192)


def test_an_alias_with_a_models_name_takes_its_place() -> None:
    assert aliases(llama="qwen").add_cards([LLAMA, QWEN])[0] == ModelCard("llama", "qwen", None, 8192)
    assert aliases(llama="third").add_cards([LLAMA]) == []


FALLS: dict[str, Any] = {"to": "llama", "fallbacks": ["qwen", "gemma"], "saturated_waiting": 4}


def test_a_model_without_a_ready_instance_falls_back_in_order() -> None:
    choice = choose(a_fleet(a="gemma", b="qwen"), **FALLS)
    assert (choice.model, choice.fallback, choice.other) == ("qwen", "no_instance", "qwen")
    assert choose(a_fleet(a="gemma"), **FALLS).model == "gemma"
    drained = a_fleet(a="llama", b="qwen")
    drained.drain("a")
    assert choose(drained, **FALLS).fallback == "no_instance"


def test_a_model_whose_breakers_are_open_falls_back_until_one_may_be_tried() -> None:
    fleet = a_fleet(a="llama", b="qwen")
    opens(fleet, "a")
    assert choose(fleet, **FALLS).fallback == "breakers_open"
    assert choose(fleet, now=10.0, **FALLS).fallback is None


def test_a_model_is_saturated_when_all_of_its_instances_are() -> None:
    fleet = a_fleet(a="llama", b="llama", c="qwen")
    waits(fleet, "a", 4)
    waits(fleet, "b", 3)
    assert choose(fleet, **FALLS).fallback is None
    waits(fleet, "b", 4)
    assert choose(fleet, **FALLS).fallback == "saturated"
    waits(fleet, "b", None)
    assert choose(fleet, **FALLS).fallback is None, "what is not reported is not known"


def test_without_a_fallback_that_can_answer_the_first_model_is_asked() -> None:
    choice = choose(a_fleet(a="other"), **FALLS)
    assert (choice.model, choice.fallback) == ("llama", None)


def test_the_next_fallback_is_one_after_the_last() -> None:
    among = aliases(a_fleet(a="qwen", b="gemma"), chat=FALLS)
    first = among.choose(find(among), 0.0)
    second = among.fall_back(first, "busy", 0.0)
    assert second is not None
    assert (second.model, second.fallback) == ("gemma", "busy")
    assert among.fall_back(second, "busy", 0.0) is None


def test_an_arm_whose_revision_has_no_instance_falls_back_to_any_of_its_model() -> None:
    among = aliases(a_fleet(a="llama@v1"), chat={"split": SPLIT, "fallbacks": ["llama"]})
    choices = {among.choose(find(among), 0.0, b"%d" % n) for n in range(50)}
    assert {(choice.arm, choice.revision, choice.fallback) for choice in choices} == {
        ("stable", "v1", None),
        ("canary", None, "no_instance"),
    }


def test_a_request_goes_on_where_its_response_is_stored() -> None:
    fleet = a_fleet(a="llama@v2", b="qwen", c="other")
    among = aliases(fleet, chat={"split": SPLIT, "fallbacks": ["qwen"]})
    a, b, c = fleet
    of_arm = among.choose_of(find(among), a)
    assert of_arm is not None
    assert (of_arm.arm, of_arm.revision, of_arm.unit) == ("canary", "v2", None)
    of_fallback = among.choose_of(find(among), b)
    assert of_fallback is not None
    assert (of_fallback.model, of_fallback.arm) == ("qwen", None)
    assert among.choose_of(find(among), c) is None
