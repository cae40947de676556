"""Defaults and caps of an alias: which fields of a body they set, at each endpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from router.errors import BadRequest
from router.prompt.api.parameters import AliasParameters
from router.prompt.body_rewrite import open_body
from router.prompt.prompt import Endpoint

DEFAULTS: dict[str, Any] = {
    "temperature": 0.2,
    "top_k": 40,
    "stop": "END",
    "reasoning_effort": "low",
    "max_tokens": 100,
}


def changes(body: str, endpoint: Endpoint = Endpoint.CHAT, cap: int | None = None, **defaults: Any) -> dict[str, Any]:
    members = open_body(body.encode(), ()).members
    found = AliasParameters(defaults, cap).find_changes(endpoint, members)
    assert all(isinstance(value, Raw) for value in found.values())
    return {name: json.loads(bytes(value)) for name, value in found.items()}


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.CHAT, DEFAULTS),
        (Endpoint.COMPLETIONS, {name: value for name, value in DEFAULTS.items() if name != "reasoning_effort"}),
        (Endpoint.RESPONSES, {"temperature": 0.2, "max_output_tokens": 100}),
        (Endpoint.MESSAGES, {"temperature": 0.2, "top_k": 40, "stop_sequences": ["END"], "max_tokens": 100}),
        (Endpoint.OTHER, {}),
    ],
)
def test_each_endpoint_gets_the_defaults_that_it_has_a_field_for(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    assert changes('{"model":"m"}', endpoint, **DEFAULTS) == fields


def test_what_the_client_gives_stays_and_null_is_nothing() -> None:
    assert changes('{"temperature":0,"top_p":null}', temperature=0.2, top_p=0.9) == {"top_p": 0.9}
    assert changes('{"max_completion_tokens":5}', max_tokens=100) == {}


@pytest.mark.parametrize(
    ("body", "endpoint", "fields"),
    [
        ('{"model":"m"}', Endpoint.CHAT, {"max_tokens": 10}),
        ('{"max_tokens":null}', Endpoint.CHAT, {"max_tokens": 10}),
        ('{"max_tokens":11}', Endpoint.CHAT, {"max_tokens": 10}),
        ('{"max_tokens":10}', Endpoint.CHAT, {}),
        ('{"max_tokens":5,"max_completion_tokens":50}', Endpoint.CHAT, {"max_completion_tokens": 10}),
        ('{"max_completion_tokens":5}', Endpoint.CHAT, {}),
        ('{"max_tokens":-1}', Endpoint.COMPLETIONS, {}),  # the engine refuses it
        ('{"max_tokens":5}', Endpoint.RESPONSES, {"max_output_tokens": 10}),  # has another name there
        ('{"max_tokens":99}', Endpoint.OTHER, {}),
    ],
)
def test_a_cap_lowers_what_is_above_it_and_stands_where_there_is_no_limit(
    body: str, endpoint: Endpoint, fields: dict[str, Any]
) -> None:
    assert changes(body, endpoint, cap=10) == fields


def test_a_default_is_the_limit_where_there_is_also_a_cap() -> None:
    assert changes("{}", cap=10, max_tokens=5) == {"max_tokens": 5}


@pytest.mark.parametrize("limit", ['"20000"', "1e9", "true", "[]", "1.5", "-"])
def test_a_limit_that_is_no_whole_number_is_refused_where_there_is_a_cap(limit: str) -> None:
    body = f'{{"max_tokens":{limit}}}'
    with pytest.raises(BadRequest):
        changes(body, cap=10)
