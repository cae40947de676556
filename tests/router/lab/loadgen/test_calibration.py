"""What is found out before a load: the model's name, its tokens per word, and endpoints that are none."""

from __future__ import annotations

import pytest

from router.clock import SystemClock
from router.lab.emulator.vocabulary import Vocabulary
from router.lab.loadgen.calibration import (
    CALIBRATION_SOURCE,
    EndpointUnavailable,
    find_first_model,
    measure_tokens_per_word,
)
from router.lab.loadgen.client import LoadClient
from router.lab.loadgen.conversations import TextGenerator
from tests.fakes.engines import engine

NOBODY = "http://127.0.0.1:1"


async def test_the_first_model_there() -> None:
    async with engine(model="the-model") as fake:
        assert await find_first_model(fake.url, None) == "the-model"
        assert await find_first_model(f"{fake.url}/v1/", None) == "the-model"  # as SDKs want it


async def test_a_key_opens_and_a_wrong_one_is_told() -> None:
    async with engine(model="m", api_key="secret") as fake:
        assert await find_first_model(fake.url, "secret") == "m"
        with pytest.raises(EndpointUnavailable, match="status 401"):
            await find_first_model(fake.url, "wrong")
        async with LoadClient(fake.url, "m", SystemClock(), "secret") as client:
            assert await measure_tokens_per_word(client, 1) > 0


async def test_nobody_there_is_one_line() -> None:
    with pytest.raises(EndpointUnavailable, match=r"127\.0\.0\.1:1: connection refused.*--url"):
        await find_first_model(NOBODY, None)
    async with LoadClient(NOBODY, "m", SystemClock()) as client:
        with pytest.raises(EndpointUnavailable, match="the first request failed: no answer"):
            await measure_tokens_per_word(client, 1)


async def test_what_is_no_url_is_one_line() -> None:
    with pytest.raises(EndpointUnavailable):
        await find_first_model("http://[::", None)


async def test_a_model_that_is_not_there_is_told() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "another", SystemClock()) as client:
        with pytest.raises(EndpointUnavailable, match="404"):
            await measure_tokens_per_word(client, 1)


async def test_tokens_per_word_are_those_of_the_models_tokenizer() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        measured = await measure_tokens_per_word(client, 5)
    words = TextGenerator(5).generate_words(CALIBRATION_SOURCE, 2000)
    assert measured == pytest.approx(len(Vocabulary().encode("".join(words))) / 2000, rel=0.05)
