"""The section `models`: what it takes, and what it says of what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import parse_config
from router.config.schema import Config
from router.errors import ConfigError

FLEET = "fleet: {instances: [{url: 'http://127.0.0.1:8100'}]}\n"


def read(models: str) -> Config:
    return parse_config(f"{FLEET}models: {models}", "router.yaml", Path("/"))


def refused(models: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read(models)
    return str(refusal.value)


def test_the_whole_of_it() -> None:
    alias = read("{chat: {to: llama, defaults: {temperature: 0.2, stop: [END]}, caps: {max_tokens: 512}}}").models[
        "chat"
    ]
    assert (alias.models, alias.caps.max_tokens) == (("llama",), 512)
    assert alias.defaults.fields == {"temperature": 0.2, "stop": ["END"]}


def test_a_parameter_that_is_not_known_is_refused_with_one_that_is() -> None:
    assert refused("{chat: {to: llama, defaults: {temprature: 0.2}}}") == (
        'router.yaml:2: models.chat.defaults.temprature: unknown key "temprature": did you mean "temperature"?'
    )
    message = refused("{chat: {to: llama, defaults: {logit_bias: {}}}}")
    assert 'unknown key "logit_bias": known here: chat_template_kwargs, frequency_penalty, ' in message


def test_a_parameter_has_a_value_that_engines_take() -> None:
    assert "found the number -1, wanted at least 0" in refused("{chat: {to: llama, defaults: {temperature: -1}}}")
    assert "found the number 0, wanted more than 0" in refused("{chat: {to: llama, caps: {max_tokens: 0}}}")


def test_defaults_keep_within_caps() -> None:
    message = refused("{chat: {to: llama, defaults: {max_tokens: 100}, caps: {max_tokens: 50}}}")
    assert "models.chat.defaults.max_tokens: found 100, wanted at most the 50 of caps.max_tokens" in message


def test_an_alias_of_an_alias_and_a_cycle_are_refused() -> None:
    chain = "models.a: b is an alias itself, of llama: name a model that engines serve"
    assert chain in refused("{a: {to: b}, b: {to: llama}}")
    assert "models.a: b is an alias itself, of a: name a model" in refused("{a: {to: b}, b: {to: a}}")


def test_an_alias_may_have_the_name_of_a_served_model_which_others_may_name() -> None:
    models = read("{llama: {to: llama, caps: {max_tokens: 9}}, chat: {to: llama}}").models
    assert [alias.models for alias in models.values()] == [("llama",), ("llama",)]


SPLIT = "{stable: {model: llama, share: 90}, canary: {model: llama, share: 10, revision: v2}}"


def test_a_split_over_a_model_and_its_revision() -> None:
    alias = read(f"{{chat: {{split: {SPLIT}, experiment: {{unit: user, guard: {{metric: error_rate}}}}}}}}").models[
        "chat"
    ]
    assert alias.models == ("llama",)
    assert alias.split["canary"].revision == "v2"
    spec = alias.split_experiment
    assert (spec.unit, spec.shares, spec.guard.metric) == ("user", {"stable": 90.0, "canary": 10.0}, "error_rate")


def test_an_alias_is_one_model_or_a_split_whose_shares_add_up() -> None:
    assert "models.chat: the alias has neither `to` nor `split`: give one" in refused("{chat: {}}")
    assert "models.chat: the alias has `to` and `split`: keep one" in refused(
        f"{{chat: {{to: llama, split: {SPLIT}}}}}"
    )
    message = refused("{chat: {split: {a: {model: x, share: 50}, b: {model: y, share: 40}}}}")
    assert "models.chat.split: found shares that add up to 90, wanted 100 (percent)" in message
    assert "experiment: found no split to compare" in refused("{chat: {to: llama, experiment: {seed: 1}}}")
    assert "wanted more than 0" in refused("{chat: {split: {a: {model: x, share: 100}, b: {model: y, share: 0}}}}")


def test_a_fallback_is_named_once() -> None:
    assert read("{chat: {to: a, fallbacks: [b, c]}}").models["chat"].models == ("a", "b", "c")
    assert "models.chat.fallbacks[1]: found b, which is named before" in refused("{chat: {to: a, fallbacks: [b, b]}}")
    assert "models.chat.fallbacks[0]: found a, which is named before" in refused("{chat: {to: a, fallbacks: [a]}}")
