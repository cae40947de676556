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
    assert "models.chat: defaults: max_tokens is 100, more than the 50 of caps" in message


def test_an_alias_of_an_alias_and_a_cycle_are_refused() -> None:
    chain = "models.a: b is an alias itself, of llama: name a model that engines serve"
    assert chain in refused("{a: {to: b}, b: {to: llama}}")
    assert "models.a: b is an alias itself, of a: name a model" in refused("{a: {to: b}, b: {to: a}}")


def test_an_alias_may_have_the_name_of_a_served_model_which_others_may_name() -> None:
    models = read("{llama: {to: llama, caps: {max_tokens: 9}}, chat: {to: llama}}").models
    assert [alias.models for alias in models.values()] == [("llama",), ("llama",)]
