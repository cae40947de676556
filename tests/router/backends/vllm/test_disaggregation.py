"""The two halves of a pair, against the shapes of protocol 7.1 and 7.2."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.vllm.disaggregation import (
    NIXL_PREFILL,
    can_split,
    decode_body,
    ended_by_length,
    mooncake_params,
    prefill_body,
    read_engine_ids,
    read_kv_params,
)
from router.prompt.prompt import Endpoint
from tests.suites.properties import examples

HANDED = (
    '{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1,2,3]],\n'
    ' "remote_engine_id": "6f1c", "remote_request_id": "chatcmpl-x-1a2b3c4d", "remote_host": "10.0.0.1",'
    ' "remote_port": 5600, "tp_size": 1, "remote_blocks_expiry_time": null, "transfer_mode": "pull", "newer": [1.50]}'
)


def raw(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


@pytest.mark.parametrize(
    ("endpoint", "sent", "expected"),
    [
        (
            Endpoint.CHAT,
            {
                "messages": [{"role": "user", "content": "é"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_completion_tokens": 500,
                "min_tokens": 10,
                "stop": ["\n"],
                "stop_token_ids": [3],
                "temperature": 0.70,
            },
            {
                "messages": [{"role": "user", "content": "é"}],
                "stream": False,
                "max_tokens": 1,
                "max_completion_tokens": 1,
                "ignore_eos": True,
                "temperature": 0.7,
            },
        ),
        (
            Endpoint.COMPLETIONS,
            {"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": False, "seed": 4},
            {"prompt": [1, 2, 3], "stream": False, "max_tokens": 1, "ignore_eos": True, "seed": 4},
        ),
        (
            Endpoint.RESPONSES,
            {"input": "hi", "max_output_tokens": 90, "store": True},
            {"input": "hi", "stream": False, "max_output_tokens": 1, "store": False, "ignore_eos": True},
        ),
        (
            Endpoint.MESSAGES,
            {"messages": [], "max_tokens": 90, "stop_sequences": ["x"], "stream": True},
            {"messages": [], "max_tokens": 1, "stream": False},
        ),
    ],
)
def test_the_prefill_half_computes_the_prompt_and_nothing_else(
    endpoint: Endpoint, sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    params = mooncake_params("xfer-1", "http://p:8998", "e1").prefill
    made = json.loads(prefill_body(endpoint, raw(**sent), params))
    assert made.pop("kv_transfer_params") == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-1",
    }
    assert made == {"model": "m", **expected}


def test_the_decode_half_is_the_clients_bytes_and_the_params() -> None:
    body = b'{ "model":"m",\n "prompt" : "}\\u00e9}", "seed": 1.50 }\n'
    params = mooncake_params("xfer-1", "http://p:8998", "e1").decode
    made = decode_body(body, params)
    assert made == body[: body.rindex(b"}")] + b',"kv_transfer_params":' + params + b"}"
    assert json.loads(made)["kv_transfer_params"] == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": "http://p:8998",
        "remote_engine_id": "e1",
        "transfer_id": "xfer-1",
    }


def test_nixl_params_come_from_one_half_and_go_into_the_other_verbatim() -> None:
    assert json.loads(prefill_body(Endpoint.CHAT, raw(messages=[]), NIXL_PREFILL))["kv_transfer_params"] == {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
        "remote_host": None, "remote_port": None,
    }  # fmt: skip
    answer = ('{"id": "cmpl-1", "choices": [], "kv_transfer_params": ' + HANDED + ', "usage": {}}').encode()
    handed = read_kv_params(answer)
    assert handed == HANDED.encode()
    assert HANDED.encode() in decode_body(raw(prompt="x"), handed)


@pytest.mark.parametrize(
    "answer", [b"{}", b'{"kv_transfer_params":null}', b'{"kv_transfer_params":{}}', b"[]", b"not json", b""]
)
def test_an_answer_that_hands_nothing_over(answer: bytes) -> None:
    assert read_kv_params(answer) is None


@pytest.mark.parametrize(
    ("endpoint", "fields", "splits"),
    [
        (Endpoint.CHAT, {"messages": []}, True),
        (Endpoint.CHAT, {"messages": [], "n": 1, "use_beam_search": False, "prompt_logprobs": None}, True),
        (Endpoint.CHAT, {"messages": [], "n": 2}, False),
        (Endpoint.CHAT, {"messages": [], "use_beam_search": True}, False),
        (Endpoint.CHAT, {"messages": [], "prompt_logprobs": 0}, False),
        (Endpoint.CHAT, {"messages": [], "kv_transfer_params": {"do_remote_prefill": True}}, False),
        (Endpoint.COMPLETIONS, {"prompt": "[x]"}, True),
        (Endpoint.COMPLETIONS, {"prompt": [5, 6]}, True),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}, False),
        (Endpoint.COMPLETIONS, {"prompt": [[1], [2]]}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "best_of": 3}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "echo": True}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "prompt_embeds": "AAAA"}, False),
        (Endpoint.RESPONSES, {"input": "a", "tools": [{"type": "function", "name": "f"}], "store": True}, True),
        (Endpoint.RESPONSES, {"input": "a", "tools": [{"type": "code_interpreter"}]}, False),
        (Endpoint.RESPONSES, {"input": "a", "tools": 7}, False),
        (Endpoint.RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, False),
        (Endpoint.RESPONSES, {"input": "a", "background": True}, False),
        (Endpoint.MESSAGES, {"messages": [], "max_tokens": 3}, True),
        (Endpoint.OTHER, {"input": "a"}, False),
    ],
)
def test_what_one_transfer_can_serve(endpoint: Endpoint, fields: dict[str, Any], splits: bool) -> None:
    assert can_split(endpoint, raw(**fields)) is splits


def test_one_token_by_length_is_what_a_producer_keeps_its_kv_for() -> None:
    assert ended_by_length(Endpoint.CHAT, b'{"choices":[{"finish_reason":"tool_calls"}]}'), "ignore_eos has seen to it"
    assert ended_by_length(Endpoint.MESSAGES, b'{"stop_reason": "max_tokens"}')
    assert not ended_by_length(Endpoint.MESSAGES, b'{"stop_reason": "end_turn"}')
    assert not ended_by_length(Endpoint.MESSAGES, b"garbage")


def test_a_bootstrap_server_names_the_engine_of_every_rank() -> None:
    answer = (
        b'{"0": {"engine_id": "a1_dp0", "worker_addr": {"0": {"0": "tcp://10.0.0.1:4001"}}}, "1": {"engine_id": "b"}}'
    )
    assert read_engine_ids(answer) == {0: "a1_dp0", 1: "b"}
    assert read_engine_ids(b"{}") == {}
    assert read_engine_ids(b'{"0": {"engine_id": 5}, "x": {"engine_id": "c"}, "2": null}') == {}
    assert [read_engine_ids(answer) for answer in (b"[]", b"<html>", b"")] == [None] * 3


names = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@examples(60)
@given(st.dictionaries(names, values, max_size=5), st.sampled_from(list(Endpoint)[:4]))
def test_whatever_a_body_holds_both_halves_are_json_and_hold_it_too(fields: dict[str, Any], endpoint: Endpoint) -> None:
    fields.pop("kv_transfer_params", None)
    body = raw(**fields)
    can_split(endpoint, body)
    decoding = json.loads(decode_body(body, b'{"transfer_id":"x"}'))
    assert decoding.pop("kv_transfer_params") == {"transfer_id": "x"}
    assert decoding == json.loads(body)
    prefilling = json.loads(prefill_body(endpoint, body, NIXL_PREFILL))
    assert prefilling["stream"] is False
    assert {name: prefilling[name] for name in fields if len(name) < 4 and name in prefilling} == {
        name: value for name, value in fields.items() if len(name) < 4
    }
