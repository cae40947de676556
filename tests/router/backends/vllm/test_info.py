"""The small answers: what they mean, and that nonsense is None."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.vllm.info import ModelList, read_event_sources, read_models, read_tokenize
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.engine_limits import MAX_MODELS, MAX_RANKS, OverLimit
from tests.paths import DATA


def json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def source(endpoint: Any, **more: Any) -> dict[str, Any]:
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": None,
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "",
    } | more


def test_models_and_their_adapters() -> None:
    body = json(
        {
            "object": "list",
            "data": [
                {"id": "m", "object": "model", "root": "/models/m", "parent": None, "max_model_len": 16384},
                {"id": "lora-a", "object": "model", "root": "/loras/a", "parent": "m", "max_model_len": None},
            ],
        }
    )
    cards = [ModelCard("m", "/models/m", None, 16384), ModelCard("lora-a", "/loras/a", "m", None)]
    assert read_models(body) == ModelList(cards)


def test_cards_that_make_no_sense_are_left_out() -> None:
    body = json({"data": [{"id": 5}, None, "m", {"id": "m", "root": 1, "max_model_len": "x"}, {"root": "/m"}]})
    assert read_models(body) == ModelList([ModelCard("m", None, None, None)])


@pytest.mark.parametrize(
    ("endpoint", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.5", "tcp://10.0.0.5:5557"),
        ("tcp://0.0.0.0:5557", "engine", "tcp://engine:5557"),
        ("tcp://[::]:5557", "engine", "tcp://engine:5557"),
        ("tcp://:::5557", "engine", "tcp://engine:5557"),
        ("tcp://*:5557", "fd00::5", "tcp://[fd00::5]:5557"),
        ("tcp://10.1.1.1:40123", "engine", "tcp://10.1.1.1:40123"),
        ("tcp://[fd00::7]:1", "engine", "tcp://[fd00::7]:1"),
        ("ipc:///run/kv", "engine", "ipc:///run/kv"),
    ],
)
def test_endpoints_as_seen_from_here(endpoint: str, host: str, expected: str) -> None:
    sources = read_event_sources(json({"0": source(endpoint, replay_endpoint=endpoint, topic="kv")}), host)
    assert sources == [EventEndpoint(0, expected, expected, "kv")]


def test_ranks_come_in_order() -> None:
    body = json({"10": source("tcp://*:5567"), "2": source("tcp://*:5559"), "0": source("tcp://*:5557")})
    assert [s.rank for s in read_event_sources(body, "h") or []] == [0, 2, 10]


@pytest.mark.parametrize(
    "entry",
    [
        source("tcp://*:5557", enable_kv_cache_events=False),
        source("tcp://*:5557", publisher="null"),
        source("inproc://kv"),
        source("tcp://*"),
        source("tcp://*:x"),
        source(None),
        source(5557),
        "tcp://*:5557",
        None,
    ],
)
def test_ranks_that_cannot_be_listened_to_are_left_out(entry: Any) -> None:
    good = EventEndpoint(1, "tcp://h:5558", None, "")
    assert read_event_sources(json({"0": entry, "1": source("tcp://*:5558")}), "h") == [good]


@pytest.mark.parametrize("key", ["", "x", "-1", "1.5", "9" * 30])
def test_ranks_without_a_number_are_left_out(key: str) -> None:
    assert read_event_sources(json({key: source("tcp://*:1")}), "h") == []


def test_an_engine_without_events_has_none() -> None:
    assert read_event_sources(b"{}", "h") == []


def test_one_rank_given_twice_does_not_confuse() -> None:
    sources = read_event_sources(json({"1": source("tcp://*:1"), "01": source("tcp://*:2")}), "h")
    assert [s.rank for s in sources or []] == [1]


def test_names_and_numbers_that_are_absurd_are_left_out() -> None:
    long = "x" * 257
    cards = [{"id": long}, {"id": "m", "parent": long, "root": "/" * 1025, "max_model_len": 2**40}, {"id": "x" * 256}]
    assert read_models(json({"data": cards})) == ModelList(
        [ModelCard("m", None, None, None), ModelCard("x" * 256, None, None, None)]
    )
    assert read_event_sources(json({"0": source("tcp://*:5557", topic=long)}), "h") == [
        EventEndpoint(0, "tcp://h:5557", None, "")
    ]
    assert read_event_sources(json({"0": source(f"tcp://{long}:5557")}), "h") == []


def test_more_models_and_ranks_than_the_bound() -> None:
    models = read_models(json({"data": [{"id": f"m{n}"} for n in range(MAX_MODELS + 1)]}))
    assert models is not None
    assert len(models.cards) == MAX_MODELS
    assert models.over == OverLimit("models", "more than 1,000 models in /v1/models: the first ones are served")
    ranks = {str(rank): source(f"tcp://*:{5000 + rank}") for rank in range(MAX_RANKS + 1)}
    assert read_event_sources(json(ranks), "h") == OverLimit("ranks", "more than 128 ranks in /kv_event_sources")
    del ranks["0"]
    found = read_event_sources(json(ranks), "h")
    assert isinstance(found, list)
    assert len(found) == MAX_RANKS


def test_a_recorded_tokenize_answer() -> None:
    tokens = read_tokenize((DATA / "vllm-0.32-tokenize.json").read_bytes())
    assert tokens == array("I", [1, 1505, 201, 1785, 2, 201, 1, 3401, 632, 849, 201])
    assert read_tokenize(b'{"tokens":[1,true]}') is None


def sources_of(body: bytes) -> object:
    return read_event_sources(body, "h")


READERS: list[Callable[[bytes], object]] = [read_models, sources_of, read_tokenize]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"<html>", b'{"data":', b"[" * 100_000])
def test_garbage_is_none(read: Callable[[bytes], object], body: bytes) -> None:
    assert read(body) is None


KEYS = st.sampled_from(["data", "id", "0", "endpoint", "topic", "tokens", "version"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_no_answer_raises(value: Any) -> None:
    body = json(value)
    for read in READERS:
        if not isinstance(value, dict):
            assert read(body) is None
        else:
            read(body)
