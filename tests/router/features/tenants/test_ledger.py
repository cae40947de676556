"""What a tenant may use at one process: exact to one request, whatever ends the requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config.sections.clients import PricesConfig, TenantLimits
from router.features.tenants.ledger import DAY_S, UNCHARGED_TOKENS, Ledger, Refusal, Reservation
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from tests.router.features.tenants.reservations import reserve

NOON = 20_000 * DAY_S + DAY_S / 2


class Scene:
    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock(1000.0, NOON)
        self.ledger = Ledger(PricesConfig(input=1.0, cached=0.5, output=2.0), self.clock, "here")
        self.limits = TenantLimits(**limits)

    def reserve(self, input_tokens: int = 0, output_tokens: int = 0, tenant: str = "t") -> Reservation | Refusal:
        return reserve(self.ledger, tenant, self.limits, TokenCounts(input_tokens, 0, output_tokens))

    def admit(self, *tokens: int) -> Reservation:
        admitted = self.reserve(*tokens)
        assert isinstance(admitted, Reservation), admitted
        return admitted


def test_requests_per_minute_are_exact_and_the_wait_is_that_of_the_oldest() -> None:
    scene = Scene(requests_per_minute=3)
    for _ in range(3):
        with scene.admit():
            scene.clock.advance(10)
    refusal = scene.reserve()
    assert refusal == Refusal("requests_per_minute", 3, 3, 1, 30.0)
    assert isinstance(scene.reserve(tenant="other"), Reservation)
    scene.clock.advance(29.9)
    assert isinstance(scene.reserve(), Refusal)
    scene.clock.advance(0.2)
    scene.admit()
    assert isinstance(scene.reserve(), Refusal)


def test_concurrent_requests_give_their_place_back_once() -> None:
    scene = Scene(concurrent=2)
    first, second = scene.admit(), scene.admit()
    refusal = scene.reserve()
    assert isinstance(refusal, Refusal)
    assert (refusal.limit, refusal.allowed, refusal.used) == ("concurrent", 2, 2)
    first.settle(NO_TOKENS)
    first.settle(NO_TOKENS)
    with first:
        pass
    assert scene.ledger.in_progress("t") == 1
    with pytest.raises(RuntimeError), second:
        raise RuntimeError
    assert scene.ledger.in_progress("t") == 0


def test_tokens_are_reserved_by_estimate_and_corrected_where_they_were_charged() -> None:
    scene = Scene(tokens_per_minute=1000)
    request = scene.admit(600, 300)
    assert isinstance(scene.reserve(200), Refusal)
    request.settle(TokenCounts(100, 500, 50))  # 500 were found in a cache, which nobody computed
    state = scene.ledger.state("t", scene.limits)
    assert state.requests is None
    assert state.tokens is not None
    assert (state.tokens.allowed, state.tokens.remaining, state.tokens.reset_s) == (1000, 850, 60.0)
    scene.admit(850)
    assert isinstance(scene.reserve(1), Refusal)


def test_what_is_cached_of_a_prompt_is_given_back_before_the_end() -> None:
    scene = Scene(tokens_per_minute=1000, budget_per_day=2000)
    request = scene.admit(600, 300)
    request.correct(500)
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 100 + 300
    assert scene.ledger.used_today("t") == 100 * 1.0 + 500 * 0.5 + 300 * 2.0
    request.correct(400)  # a second engine, of which less is known, gives nothing back
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 100 + 300
    scene.clock.advance(30)
    request.settle(TokenCounts(600, 0, 10))  # the promise was wrong
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 610
    assert scene.ledger.used_today("t") == 600 * 1.0 + 10 * 2.0
    request.correct(600)
    assert scene.ledger.used_today("t") == 600 * 1.0 + 10 * 2.0
    totals = scene.ledger.totals("t")
    assert totals.tokens - totals.returned_tokens == 610


def test_a_charge_that_left_the_window_is_not_corrected() -> None:
    scene = Scene(tokens_per_minute=1000)
    request = scene.admit(600, 300)
    scene.clock.advance(61)
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 0
    request.correct(500)
    request.settle(TokenCounts(150, 450, 300))
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 0


def test_what_is_used_now_of_each_limit() -> None:
    scene = Scene(tokens_per_minute=1000, concurrent=4, budget_per_day=2000)
    assert scene.ledger.last_limits("t") is None
    scene.admit(100, 50)
    assert scene.ledger.last_limits("t") == scene.limits
    assert scene.ledger.use("t", scene.limits) == {
        "tokens_per_minute": (1000, 150),
        "concurrent": (4, 1),
        "budget_per_day": (2000, 100 * 1.0 + 50 * 2.0),
    }
    scene.clock.advance(61)
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"] == (1000, 0)


def test_what_exceeds_an_estimate_is_charged_when_it_is_known_even_long_after() -> None:
    scene = Scene(tokens_per_minute=1000)
    short, long = scene.admit(100, 100), scene.admit(100, 100)
    short.settle(TokenCounts(100, 0, 700))
    assert isinstance(scene.reserve(1), Refusal)
    scene.clock.advance(60)
    scene.admit(1000).settle(NO_TOKENS)
    long.settle(TokenCounts(100, 0, 500))
    refusal = scene.reserve(700)
    assert isinstance(refusal, Refusal)
    assert (refusal.used, refusal.retry_after_s) == (400, 60.0)


@pytest.mark.parametrize("limits", [{"tokens_per_minute": 500}, {"budget_per_day": 500}])
def test_what_is_used_up_is_known_before_the_prompt_is(limits: Any) -> None:
    scene = Scene(**limits)
    with scene.admit(500):
        (name,) = limits
        refusal = scene.ledger.open("t", scene.limits)
        assert isinstance(refusal, Refusal)
        assert (refusal.limit, refusal.used, refusal.wanted) == (name, 500, 1)
        assert scene.ledger.in_progress("t") == 1
    assert isinstance(scene.ledger.open("t", scene.limits), Reservation)


def test_an_answer_that_runs_is_charged_beyond_its_estimate() -> None:
    scene = Scene(tokens_per_minute=1000, budget_per_day=3000)
    request = scene.admit(100, 50)
    request.follow(50 + UNCHARGED_TOKENS - 1)
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 150
    scene.clock.advance(59)
    request.follow(900)
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 1000
    assert scene.ledger.used_today("t") == 100 * 1.0 + 900 * 2.0
    assert isinstance(scene.ledger.open("t", scene.limits), Refusal)
    scene.clock.advance(30)
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 850, "counted from when they were made"
    request.settle(TokenCounts(100, 0, 910))
    request.follow(5000)
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 860
    assert scene.ledger.used_today("t") == 100 * 1.0 + 910 * 2.0


def test_no_more_is_given_back_than_was_charged_at_first() -> None:
    scene = Scene(tokens_per_minute=1000)
    request = scene.admit(10, 50)
    request.follow(800)
    request.settle(TokenCounts(10, 0, 0))  # its events had no tokens
    assert scene.ledger.use("t", scene.limits)["tokens_per_minute"].used == 750
    totals = scene.ledger.totals("t")
    assert totals.tokens - totals.returned_tokens == 750


def test_a_prompt_longer_than_the_limit_never_fits() -> None:
    scene = Scene(tokens_per_minute=1000)
    assert scene.reserve(1001) == Refusal("tokens_per_minute", 1000, 0, 1001, None)


def test_the_budget_is_of_one_day_and_holds_what_is_reserved() -> None:
    scene = Scene(budget_per_day=1000)
    request = scene.admit(400, 100)  # 600
    refusal = scene.reserve(401)
    assert refusal == Refusal("budget_per_day", 1000, 600, 401, DAY_S / 2)
    request.settle(TokenCounts(100, 300, 100))  # 100 + 150 + 200
    assert scene.ledger.used_today("t") == 450
    over_midnight = scene.admit(550)
    scene.clock.advance(DAY_S / 2)
    assert scene.ledger.used_today("t") == 550, "still reserved, and now of this day"
    over_midnight.settle(TokenCounts(550, 0, 0))
    assert scene.ledger.used_today("t") == 550
    assert scene.reserve(1001) == Refusal("budget_per_day", 1000, 550, 1001, None)


def test_a_budget_goes_on_from_what_a_file_tells() -> None:
    scene = Scene(budget_per_day=1000)
    scene.ledger.restore("t", TokenCounts(500, 200, 100))
    assert isinstance(scene.reserve(201), Refusal)
    scene.admit(200)


def test_a_request_that_is_refused_for_its_tokens_is_charged_none_and_counts_as_one() -> None:
    scene = Scene(requests_per_minute=5, tokens_per_minute=100, concurrent=3, budget_per_day=80)
    assert isinstance(scene.reserve(90), Refusal)
    assert (scene.ledger.in_progress("t"), scene.ledger.used_today("t")) == (0, 0)
    state = scene.ledger.state("t", scene.limits)
    assert state.requests is not None
    assert state.tokens is not None
    assert (state.requests.remaining, state.tokens.remaining) == (4, 100)


def test_accounts_in_which_nothing_counts_are_dropped() -> None:
    scene = Scene(requests_per_minute=5)
    kept = scene.reserve(tenant="open")
    for n in range(3000):
        with scene.ledger.open(f"t{n}", scene.limits) as done:  # type: ignore[union-attr]
            assert isinstance(done, Reservation)
        scene.clock.advance(1)
    assert len(scene.ledger) < 1100
    assert scene.ledger.in_progress("open") == 1
    assert isinstance(kept, Reservation)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 40), st.integers(0, 40)),
        st.tuples(st.just("settle"), st.integers(0, 30), st.integers(0, 60)),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 20, 59, 60, 61, DAY_S]), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_books_return_to_zero_and_limits_hold_by_what_is_charged(steps) -> None:
    scene = Scene(requests_per_minute=6, tokens_per_minute=200, concurrent=3, budget_per_day=1000)
    running: list[Reservation] = []
    admitted: list[float] = []
    for what, one, other in steps:
        if what == "wait":
            scene.clock.advance(one)
        elif what == "settle" and running:
            running.pop(one % len(running)).settle(TokenCounts(one, 5, other))
        elif what == "reserve":
            before = scene.ledger.state("t", scene.limits)
            reserved = scene.reserve(one, other)
            assert before.requests is not None
            assert before.tokens is not None
            if isinstance(reserved, Reservation):
                running.append(reserved)
                admitted.append(scene.clock.now())
                assert before.requests.remaining >= 1
                assert before.tokens.remaining >= one + other
                assert scene.ledger.used_today("t") <= 1000
        assert scene.ledger.in_progress("t") == len(running) <= 3
        assert sum(scene.clock.now() - at < 60 for at in admitted) <= 6
    for reservation in running:
        with reservation:
            pass
    account = scene.ledger._open("t")
    assert (account.open, account.reserved.read()) == (0, NO_TOKENS)
    assert account.spent.read().computed >= 0
    scene.clock.advance(2 * DAY_S)
    assert account.is_idle(scene.ledger.today(), scene.clock.now())
