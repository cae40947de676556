"""What an engine is described as, and what is recommended for it."""

from __future__ import annotations

from typing import Any

import pytest

from router.cli.init.survey import describe_engine, recommend
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.operate.doctor.survey import EngineSurvey

LIVE, REPLAY = "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5657"
CARDS = (ModelCard("sql", "/adapters/sql", "m", None), ModelCard("m", "/models/m", None, 4096))
GAUGES = {rank: Gauges(0, 0, 0.0, 16, 65_536, None, None, prefix_caching=True) for rank in range(2)}
OFF = {0: GAUGES[0], 1: GAUGES[1]._replace(prefix_caching=False)}
WELL = EngineSurvey(
    "http://10.0.0.1:8100",
    version="0.32.0",
    cards=CARDS,
    gauges=GAUGES,
    sources=(EventEndpoint(0, LIVE, REPLAY, ""),),
    cached_tokens=True,
)


def test_the_words_for_an_engine_with_everything_on() -> None:
    assert recommend(WELL) == []
    assert describe_engine(WELL) == [
        "vLLM 0.32.0, model m, 2 ranks, blocks of 16 tokens, KV cache of 131,072 tokens, adapters sql",
        f"KV events: rank 0 at {LIVE}, replay at {REPLAY}",
        "cached_tokens in usage: on",
    ]


@pytest.mark.parametrize(
    ("answers", "flag", "fact"),
    [
        ({"sources": ()}, '--kv-events-config \'{"enable_kv_cache_events": true', "KV events: off"),
        ({"sources": None}, "--kv-events-config", "KV events: unknown; this version has no GET /kv_event_sources"),
        (
            {"sources": (EventEndpoint(0, LIVE, None, ""),)},
            '"replay_endpoint": "tcp://*:5657" in --kv-events-config',
            f"KV events: rank 0 at {LIVE}, replay off",
        ),
        ({"cached_tokens": False}, "--enable-prompt-tokens-details", "cached_tokens in usage: off"),
        (
            {"gauges": OFF, "cached_tokens": None},
            "--enable-prefix-caching",
            "cached_tokens in usage: unknown",
        ),
        ({"gauges": {}}, "no --disable-log-stats", "vLLM 0.32.0, model m, block size unknown, adapters sql"),
    ],
)
def test_what_is_off_is_said_and_recommended(answers: dict[str, Any], flag: str, fact: str) -> None:
    survey = WELL._replace(**answers)
    (advice,) = recommend(survey)
    assert advice.flags.startswith(flag)
    assert fact in describe_engine(survey)


def test_endpoints_that_refuse_a_connection_are_named() -> None:
    lines = describe_engine(WELL._replace(unreachable=(REPLAY,)))
    assert lines[1].endswith(f"; not reachable from here: {REPLAY}")
