"""What is learned of synthetic engines whose truth is known: their prefill curve, their links, their decode step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.schema import DecodePrior, SpeedPrior
from router.fleet.latency_model import CURVE_SAMPLES, LINK_SAMPLES, LINKS, LatencyModel, Link
from scorers.contract import Decode, Speed, Transfer
from tests.suites.properties import examples

PRIOR = SpeedPrior()
STEP_PRIOR = Decode(10.0, 50.0, 60.0, 0, None)
TRUTH = Speed(35.0, 40.0, 6.0, 0, None, None, None, None)
PROBES = [(200, 0), (2000, 0), (2000, 30_000), (20_000, 0), (500, 60_000)]


def traffic(dice: random.Random) -> tuple[int, int]:
    """Chats and agents: short and long, cold and warm."""
    return int(10 ** dice.uniform(1.5, 4.3)), dice.choice((0, 0, int(10 ** dice.uniform(2, 4.8))))


def taught(
    model: LatencyModel, truth: Speed, samples: int, seed: int, noise: float = 0.1, outliers: float = 0.0
) -> None:
    dice = random.Random(seed)
    for i in range(samples):
        new, context = traffic(dice)
        ms = truth.prefill_ms(new, context) * max(0.1, dice.gauss(1.0, noise))
        if dice.random() < outliers:
            ms = ms * 10 + 5000
        model.observe_prefill(new, context, ms, float(i))


def worst_error(model: LatencyModel, truth: Speed, now: float = 1e6) -> float:
    speed = model.speed(now)
    return max(abs(speed.prefill_ms(*probe) / truth.prefill_ms(*probe) - 1) for probe in PROBES)


def test_the_prior_until_somebody_showed_anything() -> None:
    speed = LatencyModel(PRIOR).speed(12.0)
    assert speed[:3] == (PRIOR.base_ms, PRIOR.us_per_token, PRIOR.ns_per_token_context)
    assert (speed.samples, speed.age_s) == (0, None)
    for link in LINKS:
        prior = getattr(PRIOR, link)
        assert getattr(speed, link) == Transfer(prior.base_ms, prior.us_per_token, 0, None)


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_curve_in_noise(seed: int) -> None:
    model = LatencyModel(PRIOR)
    taught(model, TRUTH, 200, seed)
    assert worst_error(model, TRUTH) < 0.2
    assert model.speed(200.0).samples == 200


@pytest.mark.parametrize("seed", range(5))
def test_a_few_outliers_do_not_matter(seed: int) -> None:
    model = LatencyModel(PRIOR)
    taught(model, TRUTH, 400, seed, outliers=0.03)
    assert worst_error(model, TRUTH) < 0.35


@pytest.mark.parametrize("factor", [0.1, 20.0])
def test_leaves_a_wrong_prior_within_a_dozen_samples(factor: float) -> None:
    truth = Speed(10.0 * factor, 100.0 * factor, 2.0 * factor, 0, None, None, None, None)
    model = LatencyModel(PRIOR)
    taught(model, truth, 12, seed=3)
    assert model.speed(12.0).prefill_ms(4000, 0) == pytest.approx(truth.prefill_ms(4000, 0), rel=0.3)


def test_follows_an_engine_that_became_three_times_slower() -> None:
    model = LatencyModel(PRIOR)
    taught(model, TRUTH, 1000, seed=1)
    slower = Speed(105.0, 120.0, 18.0, 0, None, None, None, None)
    taught(model, slower, 300, seed=2)
    assert worst_error(model, slower, now=300.0) < 0.3


def test_one_odd_prompt_after_a_monotonous_day_does_not_throw_it() -> None:
    model = LatencyModel(PRIOR)
    for i in range(5000):
        model.observe_prefill(100, 0, TRUTH.prefill_ms(100, 0), float(i))
    model.observe_prefill(20_000, 0, TRUTH.prefill_ms(20_000, 0), 5001.0)
    speed = model.speed(5002.0)
    assert speed.prefill_ms(100, 0) == pytest.approx(TRUTH.prefill_ms(100, 0), rel=0.3)
    assert speed.prefill_ms(20_000, 0) == pytest.approx(TRUTH.prefill_ms(20_000, 0), rel=0.5)


@examples(150)
@given(
    st.lists(
        st.tuples(st.integers(-5, 200_000), st.integers(-5, 200_000), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=60,
    )
)
def test_whatever_it_is_told_no_cost_is_negative(samples: list[tuple[int, int, float]]) -> None:
    model = LatencyModel(PRIOR)
    for i, (new, context, ms) in enumerate(samples):
        model.observe_prefill(new, context, ms, float(i))
    speed = model.speed(100.0)
    assert all(0 <= coefficient < float("inf") for coefficient in speed[:3])


def test_a_curve_without_a_base_stays_right() -> None:
    """The coefficient that would be negative is held at 0 and the others explain the rest."""
    truth = Speed(0.0, 50.0, 0.0, 0, None, None, None, None)
    model = LatencyModel(PRIOR)
    taught(model, truth, 200, seed=4)
    assert model.speed(0.0).prefill_ms(10_000, 0) == pytest.approx(500, rel=0.1)


def test_age_is_since_the_last_sample_and_good_to_a_second() -> None:
    model = LatencyModel(PRIOR)
    model.observe_prefill(1000, 0, 100.0, 10.0)
    fresh = model.speed(10.5)
    assert fresh.age_s == 0.5
    assert model.speed(11.4) is fresh, "handed on, not rebuilt"
    assert model.speed(13.0).age_s == 3.0


# links

POOL = Transfer(20.0, 10.0, 0, None)  # 100,000 tokens a second


def load_ms(link: Transfer, tokens: float) -> float:
    return link.base_ms + link.us_per_token * tokens / 1e3


def fetched(
    model: LatencyModel,
    truth: Transfer,
    samples: int,
    seed: int,
    link: Link = "pool",
    noise: float = 0.1,
    outliers: float = 0.0,
) -> None:
    """Lone answers of an engine that computes by TRUTH and fetches by `truth`; the whole time is noisy."""
    dice = random.Random(seed)
    for i in range(samples):
        tokens, new = int(10 ** dice.uniform(2.5, 4.7)), int(10 ** dice.uniform(1.5, 3.0))
        ms = (load_ms(truth, tokens) + TRUTH.prefill_ms(new, tokens)) * max(0.1, dice.gauss(1.0, noise))
        if dice.random() < outliers:
            ms = ms * 10 + 5000
        model.observe_fetch(link, tokens, new, tokens, ms, 1000.0 + i)


def settled(prior: SpeedPrior = PRIOR) -> LatencyModel:
    """Its curve is known well."""
    model = LatencyModel(prior)
    taught(model, TRUTH, 200, seed=9)
    return model


def wrong_prior(factor: float) -> SpeedPrior:
    wrong = {"base_ms": 20.0 * factor, "us_per_token": 10.0 * factor}
    return SpeedPrior.model_validate(dict.fromkeys(LINKS, wrong))


def learned(model: LatencyModel, link: Link = "pool") -> Transfer:
    found: Transfer = getattr(model.speed(1e6), link)
    return found


@pytest.mark.parametrize("factor", [0.1, 20.0])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("seed", range(3))
def test_finds_a_link_within_a_dozen_samples_of_a_wrong_prior(factor: float, link: Link, seed: int) -> None:
    model = settled(wrong_prior(factor))
    fetched(model, POOL, 12, seed, link)
    assert load_ms(learned(model, link), 30_000) == pytest.approx(load_ms(POOL, 30_000), rel=0.35)
    assert learned(model, link).samples == 12
    for other in set(LINKS) - {link}:
        assert learned(model, other).samples == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_samples_tell_its_rate(seed: int) -> None:
    model = settled(wrong_prior(5.0))
    fetched(model, POOL, 100, seed, outliers=0.03)
    assert learned(model).us_per_token == pytest.approx(10.0, rel=0.25)
    assert load_ms(learned(model), 1000) == pytest.approx(load_ms(POOL, 1000), abs=25)


def test_an_hour_between_samples_makes_it_old_not_wrong() -> None:
    model = settled()
    for i in range(30):
        model.observe_fetch("pool", 20_000, 100, 20_000, 220 + TRUTH.prefill_ms(100, 20_000), i * 3600.0)
    pool = model.speed(29 * 3600.0 + 600).pool
    assert pool is not None
    assert (pool.samples, pool.age_s) == (30, 600.0)
    assert load_ms(pool, 20_000) == pytest.approx(220, rel=0.2)


def test_what_a_link_did_says_nothing_of_the_curve() -> None:
    model = settled()
    before = model.speed(1e6)[:4]
    fetched(model, Transfer(5000.0, 500.0, 0, None), 50, seed=1)
    assert model.speed(1e6)[:4] == before


def test_a_curve_that_is_hardly_known_is_not_subtracted() -> None:
    model = LatencyModel(PRIOR)
    taught(model, TRUTH, CURVE_SAMPLES - 1, seed=1)
    model.observe_fetch("pool", 1000, 10, 1000, 500.0, 20.0)
    assert learned(model).samples == 0
    model.observe_prefill(100, 0, TRUTH.prefill_ms(100, 0), 21.0)
    model.observe_fetch("pool", 1000, 10, 1000, 500.0, 22.0)
    assert learned(model).samples == 1


def test_an_answer_sooner_than_the_curve_alone_counts_too() -> None:
    """Else only those that were late by chance would be believed, and the link look slow."""
    model = settled(wrong_prior(20.0))
    for i in range(40):  # free, and 30 ms too early or too late
        model.observe_fetch(
            "pool", 10_000, 500, 10_000, TRUTH.prefill_ms(500, 10_000) + (30 if i % 2 else -30), float(i)
        )
    assert load_ms(learned(model), 10_000) < 15


@examples(100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(LINKS),
            st.integers(-5, 200_000),
            st.integers(-5, 200_000),
            st.integers(-5, 200_000),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=40,
    )
)
def test_whatever_it_is_told_no_link_is_negative(samples: list[tuple[Link, int, int, int, float]]) -> None:
    model = settled()
    for i, (link, tokens, new, context, ms) in enumerate(samples):
        model.observe_fetch(link, tokens, new, context, ms, float(i))
        model.observe_pool_load(tokens, ms, float(i))
    for link in LINKS:
        base_ms, us_per_token, *_ = learned(model, link)
        assert 0 <= base_ms < float("inf")
        assert 0 <= us_per_token < float("inf")


# the engine's counters


def test_counters_tell_the_pool_until_answers_do() -> None:
    model = settled(wrong_prior(20.0))
    dice = random.Random(5)
    for i in range(50):
        tokens = dice.randrange(500, 40_000)
        model.observe_pool_load(tokens, 3.0 + tokens * 0.002 * dice.gauss(1.0, 0.1), float(i))
    assert load_ms(learned(model), 20_000) == pytest.approx(43, rel=0.1)
    assert learned(model).samples == 50
    fetched(model, POOL, LINK_SAMPLES - 1, seed=1)
    assert learned(model).samples == 50
    fetched(model, POOL, LINK_SAMPLES, seed=2)
    assert learned(model).samples == 2 * LINK_SAMPLES - 1, "and the fast copies of before weigh nothing in them"
    assert load_ms(learned(model), 20_000) == pytest.approx(load_ms(POOL, 20_000), rel=0.35)


def test_answers_tell_the_pool_where_no_counter_does() -> None:
    model = settled(wrong_prior(20.0))
    fetched(model, POOL, 1, seed=1)
    assert learned(model).samples == 1


# how far a fit may be off


def test_a_coefficient_that_the_traffic_hardly_shows_stays_uncertain() -> None:
    """Prompts of one length cannot say what is due to the length and what is not."""
    varied, alike = LatencyModel(PRIOR), LatencyModel(PRIOR)
    taught(varied, TRUTH, 200, seed=1)
    for i in range(200):
        alike.observe_prefill(1000, 0, TRUTH.prefill_ms(1000, 0), float(i))
    prior = LatencyModel(PRIOR).deviation.prefill
    for place in range(3):
        assert varied.deviation.prefill[place] < 0.5 * prior[place]
    assert alike.deviation.prefill[2] > 0.9 * prior[2]


# the decode step

STEP = Decode(7.0, 80.0, 30.0, 0, None)
BATCHES = [(1, 2_000), (8, 30_000), (64, 100_000), (40, 900_000)]


def step_error(model: LatencyModel, truth: Decode) -> float:
    found = model.speed(1e6).decode
    assert found is not None
    return max(abs(found.step_ms(*batch) / truth.step_ms(*batch) - 1) for batch in BATCHES)


def decoded(
    model: LatencyModel, truth: Decode, samples: int, seed: int, noise: float = 0.05, outliers: float = 0.0
) -> None:
    dice = random.Random(seed)
    for i in range(samples):
        requests = dice.randint(1, 80)
        context = sum(int(10 ** dice.uniform(2, 4.7)) for _ in range(requests))
        ms = truth.step_ms(requests, context) * max(0.1, dice.gauss(1.0, noise))
        model.observe_decode_step(ms * 20 if dice.random() < outliers else ms, requests, context, float(i))


def test_the_decode_prior_until_an_answer_showed_anything() -> None:
    assert LatencyModel(PRIOR).speed(1.0).decode == STEP_PRIOR
    stated = DecodePrior(base_ms=3.0, us_per_request=2.0, ns_per_context_token=1.0)
    assert LatencyModel(SpeedPrior(decode=stated)).speed(1.0).decode == Decode(3.0, 2.0, 1.0, 0, None)
    # 16 GB of weights at 2 TB/s and 2 ms; 131,072 bytes at 2 TB/s are 65 ns: a batch of 10 with 100,000 tokens
    assert STEP_PRIOR.step_ms(10, 100_000) == pytest.approx(10 + 0.5 + 6.0)


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_decode_step_in_noise(seed: int) -> None:
    model = LatencyModel(PRIOR)
    decoded(model, STEP, 200, seed, outliers=0.02)
    found = model.speed(200.0).decode
    assert found is not None
    assert (found.samples, found.age_s) == (200, 1.0)
    assert step_error(model, STEP) < 0.15


@pytest.mark.parametrize("factor", [0.2, 10.0])
def test_leaves_a_wrong_decode_prior_within_a_dozen_samples(factor: float) -> None:
    truth = Decode(*(factor * value for value in STEP_PRIOR[:3]), 0, None)
    model = LatencyModel(PRIOR)
    decoded(model, truth, 12, seed=3)
    found = model.speed(12.0).decode
    assert found is not None
    assert found.step_ms(30, 200_000) == pytest.approx(truth.step_ms(30, 200_000), rel=0.3)


def test_a_batch_that_is_always_the_same_is_priced_right() -> None:
    model = LatencyModel(PRIOR)
    for i in range(60):
        model.observe_decode_step(25.0, 4.0, 12_000.0, float(i))
    found = model.speed(60.0).decode
    assert found is not None
    assert found.step_ms(4, 12_000) == pytest.approx(25.0, rel=0.02)


def test_one_decode_sample_each_half_second_is_enough() -> None:
    model = LatencyModel(PRIOR)
    for i in range(11):  # at 0, 0.1, ... 1.0
        model.observe_decode_step(20.0, 2.0, 1000.0, i / 10)
    found = model.speed(2.0).decode
    assert found is not None
    assert found.samples == 3, "those at 0, 0.5 and 1.0"


def test_what_decoding_took_says_nothing_of_prefills() -> None:
    model = settled()
    before = model.speed(1e6)[:10]
    decoded(model, STEP, 50, seed=1)
    assert model.speed(1e6)[:10] == before


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-10, 1e6)


@examples(100)
@given(st.lists(st.tuples(numbers, st.floats(-5, 1e5), st.floats(-5, 1e9)), max_size=40))
def test_whatever_it_is_told_no_step_is_negative(samples: list[tuple[float, float, float]]) -> None:
    model = LatencyModel(PRIOR)
    for i, (ms, requests, context) in enumerate(samples):
        model.observe_decode_step(ms, requests, context, float(i))
    found = model.speed(100.0).decode
    assert found is not None
    assert all(0 <= coefficient < float("inf") for coefficient in found[:3])


def test_a_link_without_a_sample_is_taken_to_be_as_fast_as_elsewhere() -> None:
    here, other = settled(), settled()
    for number in range(12):
        other.observe_fetch("pool", 10_000 + 1000 * number, 10, 10_000 + 1000 * number, 900.0, float(number))
    learnt = other.speed(20.0).pool
    assert learnt is not None
    assert here.assume(other.speed(20.0))
    assert here.speed(20.0).pool == learnt._replace(samples=0, age_s=None)
    assert here.speed(20.0).cpu == Transfer(PRIOR.cpu.base_ms, PRIOR.cpu.us_per_token, 0, None), "nobody knows it"
    assert not here.assume(other.speed(20.0)), "it is so already"
    here.observe_fetch("pool", 10_000, 10, 10_000, 300.0, 21.0)
    own = here.speed(23.0).pool
    assert own is not None
    assert own.samples == 1
    assert not here.assume(other.speed(23.0)), "what was seen here counts"


def peers(base_ms: float, samples: int = 9, decode: Decode | None = None) -> Speed:
    return Speed(base_ms, 100.0, 0.0, samples, 1.0, None, None, None, decode=decode)


def test_what_was_not_measured_is_as_fast_as_its_peers() -> None:
    model = LatencyModel(PRIOR)
    step = Decode(3.0, 1.0, 1.0, 5, 1.0)
    assert model.assume(peers(77.0, decode=step))
    speed = model.speed(1.0)
    assert (speed[:5], speed.decode) == ((77.0, 100.0, 0.0, 0, None), step._replace(samples=0, age_s=None))
    assert model.own(1.0)[:3] == (PRIOR.base_ms, PRIOR.us_per_token, PRIOR.ns_per_token_context)


def test_peers_without_samples_change_nothing() -> None:
    model = LatencyModel(PRIOR)
    model.assume(peers(77.0, samples=0))
    assert model.speed(1.0).base_ms == PRIOR.base_ms


def test_its_own_samples_count_once_they_tell_it_from_its_peers() -> None:
    twin, slow = LatencyModel(PRIOR), LatencyModel(PRIOR)
    typical = peers(20.0)
    for model in (twin, slow):
        model.assume(typical)
    for n in range(6):
        twin.observe_prefill(1000, 0, 120.0 + (-1) ** n * 8, float(n))
        slow.observe_prefill(1000, 0, 300.0, float(n))
    assert twin.speed(6.0)[:3] == typical[:3]
    assert twin.speed(6.0).samples == 6
    assert slow.speed(6.0).prefill_ms(1000, 0) == pytest.approx(300.0, rel=0.1)


def test_a_fit_from_another_router_counts_from_the_start() -> None:
    known, new = LatencyModel(PRIOR), LatencyModel(PRIOR)
    for n in range(20):
        known.observe_prefill(1000, 0, 300.0, float(n))
    new.restore([fit.save(20.0) for fit in known.fits], 20.0)
    new.assume(peers(20.0))
    assert new.speed(20.0)[:3] == known.speed(20.0)[:3]
