"""Emulated engines, surveyed over real sockets."""

from __future__ import annotations

import pytest

from router.fleet.engine_facts import ModelCard
from router.operate.doctor.survey import EngineSurvey, survey_url
from tests.fakes.engines import engine

CARDS = (ModelCard("sql", "/adapters/sql", "m", None), ModelCard("m", "/models/m", None, 4096))


async def test_an_engine_with_everything_on() -> None:
    async with engine(ranks=2, block_tokens=32, blocks=100, loras=("sql",)) as fake:
        survey = await survey_url(fake.url)
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
        survey = await survey_url(fake.url)
    assert (survey.sources, survey.cached_tokens) == ((), False)


async def test_an_engine_of_a_version_that_does_not_know_event_sources() -> None:
    async with engine(version="0.30.0") as fake:
        del fake.server.app._routes["GET", "/kv_event_sources"]
        assert (await survey_url(fake.url)).sources is None


async def test_an_engine_with_a_key() -> None:
    async with engine(api_key="secret") as fake:
        without, with_key = await survey_url(fake.url), await survey_url(fake.url, "secret")
    assert without.error == "GET /v1/models: 401 and no list of models; is --api-key-env right?"
    assert with_key.error is None


async def test_engines_that_cannot_be_used_say_why() -> None:
    async with engine() as fake:
        fake.faults(unhealthy=True)
        assert (await survey_url(fake.url)).error == "GET /health: 503"
        url = fake.url
    gone = (await survey_url(url)).error
    assert gone is not None
    assert gone.startswith("no answer: ")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://nowhere.invalid"])
async def test_no_answer_is_an_error_of_that_engine(url: str) -> None:
    assert (await survey_url(url)).error is not None


def test_the_base_model_is_the_card_without_a_parent() -> None:
    survey = EngineSurvey("http://a", cards=CARDS)
    assert (survey.model, survey.root, survey.adapters) == ("m", "/models/m", {"sql": "/adapters/sql"})
    assert EngineSurvey("http://a").model is None
