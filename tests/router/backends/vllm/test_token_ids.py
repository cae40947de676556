"""Bodies with token ids: what stands in them, that nothing else of them changes, and what answers say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.vllm.disaggregation import NIXL_PREFILL, decode_body, mooncake_params, prefill_body
from router.backends.vllm.token_ids import add_ids, add_ids_to_params, read_count, refuses_ids, trial_body
from router.prompt.prompt import Endpoint

PAIR = mooncake_params("xfer-1", "http://p:8998", "engine-1")

texts = st.text(max_size=20)
members = st.dictionaries(texts, st.recursive(texts | st.integers() | st.none(), st.lists, max_leaves=4), min_size=1)
runs = st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5), min_size=1, max_size=5)
spaces = st.sampled_from(["", " ", "\n\t "])


def spelled(of: list[list[int]]) -> tuple[bytes, ...]:
    return tuple(",".join(map(str, run)).encode() for run in of)


def joined(of: list[list[int]]) -> list[int]:
    return [id for run in of for id in run]


@given(members, runs, spaces, spaces)
def test_a_request_gets_its_ids_and_nothing_else_changes(body: Any, ids: Any, before: str, after: str) -> None:
    body.pop("kv_transfer_params", None)
    body["model"] = "}"
    raw = json.dumps(body)[:-1] + before + "}" + after
    made = json.loads(add_ids(raw.encode(), spelled(ids)))
    assert made.pop("kv_transfer_params") == {"prompt_token_ids": joined(ids)}
    assert made == body


@given(members, runs, st.sampled_from([PAIR.decode, NIXL_PREFILL, b'{"remote_block_ids": [[1, 2]] }']))
def test_a_half_keeps_its_parameters(body: Any, ids: Any, params: bytes) -> None:
    body.pop("kv_transfer_params", None)
    body["model"] = "m"
    raw = json.dumps(body).encode()
    halves = [decode_body(raw, params), prefill_body(Endpoint.CHAT, raw, params)]
    for half in halves:
        before, made = json.loads(half), json.loads(add_ids_to_params(half, spelled(ids)))
        assert made["kv_transfer_params"].pop("prompt_token_ids") == joined(ids)
        assert made == before


def test_what_is_written() -> None:
    assert add_ids(b'{"model":"m"}', (b"1,2", b"3")) == (
        b'{"model":"m","kv_transfer_params":{"prompt_token_ids":[1,2,3]}}'
    )
    assert add_ids_to_params(b'{"model":"m","kv_transfer_params":{"a":1}}', (b"1",)) == (
        b'{"model":"m","kv_transfer_params":{"a":1,"prompt_token_ids":[1]}}'
    )


def test_an_engine_names_what_it_refuses() -> None:
    """As 0.32 answers to an id that is not in its vocabulary."""
    refusal = (
        b'{"error":{"message":"Token id 30100000 is out of vocabulary (parameter=kv_transfer_params.prompt_token_ids)",'
        b'"type":"BadRequestError","param":"kv_transfer_params.prompt_token_ids","code":400}}'
    )
    assert refuses_ids(refusal)
    assert not refuses_ids(b'{"error":{"message":"n must be at least 1","param":"n","code":400}}')


def test_a_trial_is_small_and_says_two_things() -> None:
    body = json.loads(trial_body("m", "Hello there", [7, 8]))
    assert body["kv_transfer_params"] == {"prompt_token_ids": [7, 8]}
    assert (body["messages"], body["max_tokens"]) == ([{"role": "user", "content": "Hello there"}], 1)


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (b'{"choices":[],"usage":{"prompt_tokens":2,"total_tokens":3}}', 2),
        (b'{"choices":[]}', None),
        (b'{"usage":{"prompt_tokens":null}}', None),
        (b"<html>", None),
        (b"\xff", None),
    ],
)
def test_the_count_of_an_answer(answer: bytes, count: int | None) -> None:
    assert read_count(answer) == count
