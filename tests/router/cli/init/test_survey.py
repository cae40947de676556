"""Emulated engines, surveyed over real sockets; and what a survey is described as, and what it recommends."""

from __future__ import annotations

from typing import Any

import pytest

from router.cli.init.survey import EngineSurvey, describe_engine, recommend, survey_engine
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from tests.fakes.engines import engine

LIVE, REPLAY = "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5657"
CARDS = (ModelCard("sql", "/adapters/sql", "m", None), ModelCard("m", "/models/m", None, 4096))
GAUGES = {rank: Gauges(0, 0, 0.0, 16, 65_536, None, None) for rank in range(2)}
WELL = EngineSurvey(
    "http://10.0.0.1:8100",
    version="0.32.0",
    cards=CARDS,
    gauges=GAUGES,
    prefix_caching=True,
    sources=(EventEndpoint(0, LIVE, REPLAY, ""),),
    cached_tokens=True,
)


async def test_an_engine_with_everything_on() -> None:
    async with engine(ranks=2, block_tokens=32, blocks=100, loras=("sql",)) as fake:
        survey = await survey_engine(fake.url)
        sources = fake.sources()
    assert survey.error is None
    assert (survey.model, survey.version, survey.prefix_caching) == ("warm-tiny", "0.32.0", True)
    assert [card.id for card in survey.cards] == ["warm-tiny", "sql"]
    assert [each.block_tokens for each in survey.gauges.values()] == [32, 32]
    assert survey.sources is not None
    assert [one.endpoint for one in survey.sources] == [sources["0"]["endpoint"], sources["1"]["endpoint"]]
    assert all(one.replay_endpoint is not None for one in survey.sources)
    assert survey.unreachable == ()
    assert survey.cached_tokens is True


async def test_what_an_engine_has_off() -> None:
    async with engine(events=False, cached_tokens=False) as fake:
        survey = await survey_engine(fake.url)
    assert (survey.sources, survey.cached_tokens) == ((), False)


async def test_an_engine_of_a_version_that_does_not_know_event_sources() -> None:
    async with engine(version="0.30.0") as fake:
        del fake.server.app._routes["GET", "/kv_event_sources"]
        assert (await survey_engine(fake.url)).sources is None


async def test_an_engine_with_a_key() -> None:
    async with engine(api_key="secret") as fake:
        without, with_key = await survey_engine(fake.url), await survey_engine(fake.url, "secret")
    assert without.error == "GET /v1/models: 401 and no list of models; is --api-key-env right?"
    assert with_key.error is None


async def test_engines_that_cannot_be_used_say_why() -> None:
    async with engine() as fake:
        fake.faults(unhealthy=True)
        assert (await survey_engine(fake.url)).error == "GET /health: 503"
        url = fake.url
    gone = (await survey_engine(url)).error
    assert gone is not None
    assert gone.startswith("no answer: ")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://nowhere.invalid"])
async def test_no_answer_is_an_error_of_that_engine(url: str) -> None:
    assert (await survey_engine(url)).error is not None


def test_the_base_model_is_the_card_without_a_parent() -> None:
    assert (WELL.model, WELL.root) == ("m", "/models/m")
    assert EngineSurvey("http://a").model is None


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
            {"prefix_caching": False, "cached_tokens": None},
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
