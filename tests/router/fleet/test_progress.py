"""When a target counts as stuck, in virtual time: one check every quarter second, one metrics page each time."""

from __future__ import annotations

from typing import Any

import pytest

from router.fleet.load import NO_GAUGES, LoadBook
from router.fleet.progress import FLOOR_S, SLOWDOWN, UNLEARNED_S, OpenWork, Stall, TargetProgress
from scorers.contract import Decode, Speed

CHECK_S = 0.25
STEP_MS = 20.0
LEARNED = Speed(10.0, 100.0, 0.0, 9, 0.0, None, None, None, None, None, Decode(STEP_MS, 0.0, 0.0, 9, 0.0))
UNLEARNED = LEARNED._replace(samples=0, age_s=None, decode=Decode(STEP_MS, 0.0, 0.0, 0, None))
STREAMS = OpenWork(0, 0.0, 0.0, 0, 10, shows=False)
PROMPT = OpenWork(1, 1000.0, 1000.0, 0, 0, shows=True)
LONG_PROMPT = PROMPT._replace(prefill_ms=20_000.0)
WHOLE_ANSWER = PROMPT._replace(shows=False)
IMAGE = OpenWork(0, 0.0, 0.0, 1, 0, shows=True)


class Watched:
    """A target, its engine's metrics (None: it has none) and a clock."""

    def __init__(self, speed: Speed = LEARNED, *, counts: bool = True) -> None:
        self.progress, self.book, self.speed, self.now = TargetProgress(), LoadBook(), speed, 100.0
        self.tokens, self.counts, self.elsewhere = 0, counts, 0
        self.usage, self.slowdown = 0.1, 1.0

    def check(self, work: OpenWork, tokens: int = 0, pieces: int = 0, running: int = 10) -> Stall | None:
        """Let a quarter second pass in which the engine makes `tokens`, `pieces` of which arrive."""
        self.now += CHECK_S
        self.tokens += tokens
        self.progress.pieces += pieces
        if self.counts:
            gauges = NO_GAUGES._replace(running=running, waiting=0, kv_usage=self.usage, output_tokens=self.tokens)
            self.book.gauges, self.book.gauges_at, self.book.elsewhere = gauges, self.now - 0.01, self.elsewhere
        return self.progress.check(work, self.book, self.speed, self.slowdown, self.now)

    def until_stuck(self, work: OpenWork, **each: Any) -> float | None:
        """Seconds until it is stuck; None: not within a minute."""
        began = self.now
        while self.now < began + 60:
            if self.check(work, **each) is not None:
                return self.now - began
        return None


@pytest.mark.parametrize("counts", [True, False])
def test_streams_without_a_token_show_it_after_the_floor(counts: bool) -> None:
    watched = Watched(counts=counts)
    assert not any(watched.check(STREAMS, tokens=125, pieces=125) for _ in range(40))
    took = watched.until_stuck(STREAMS)
    assert took == pytest.approx(FLOOR_S, abs=2 * CHECK_S)
    assert watched.progress.stall == Stall("silent", took, 0, 10)
    assert str(watched.progress.stall).startswith("no progress for 3.")


def test_a_prefill_has_three_times_as_long_as_was_learned_of_it() -> None:
    took = Watched().until_stuck(PROMPT)
    assert took == pytest.approx(FLOOR_S + 3 * 1.0, abs=3 * CHECK_S)


def test_streams_wait_for_one_step_of_a_long_prefill_only() -> None:
    long = OpenWork(1, 20_000.0, 4_000.0, 0, 5, shows=True)
    assert Watched().until_stuck(long) == pytest.approx(FLOOR_S + 12.0, abs=3 * CHECK_S)
    alone = Watched().until_stuck(long._replace(streams=0))
    assert alone is None, "63 s"


def test_little_is_expected_before_anything_was_learned() -> None:
    assert Watched(UNLEARNED).until_stuck(STREAMS) == pytest.approx(UNLEARNED_S, abs=3 * CHECK_S)


def test_memory_that_fills_is_progress_of_a_long_prefill_and_memory_that_empties_is_none() -> None:
    watched = Watched()
    for _ in range(200):
        watched.usage += 0.001
        assert watched.check(LONG_PROMPT) is None
    for _ in range(300):
        watched.usage -= 0.0001
        stall = watched.check(LONG_PROMPT)
    assert stall is not None, "aborted requests free memory"


@pytest.mark.parametrize(("counts", "stuck"), [(True, True), (False, False)])
def test_an_answer_that_is_no_stream_shows_in_the_metrics_or_not_at_all(counts: bool, stuck: bool) -> None:
    watched = Watched(counts=counts)
    assert all(watched.check(WHOLE_ANSWER, tokens=12, running=1) is None for _ in range(100))
    assert (watched.until_stuck(WHOLE_ANSWER) is not None) == stuck


def test_a_page_that_is_no_longer_served_is_no_evidence() -> None:
    watched = Watched()
    watched.check(WHOLE_ANSWER)
    watched.counts = False
    assert watched.until_stuck(WHOLE_ANSWER) is None


def test_an_image_may_take_long_before_the_engine_begins() -> None:
    assert Watched().until_stuck(IMAGE) is None
    assert Watched().until_stuck(IMAGE._replace(streams=1)) is not None, "a stream beside it would go on"


@pytest.mark.parametrize(("factor", "stuck"), [(1, False), (4, False), (20, True)])
def test_an_engine_much_slower_than_learned(factor: int, stuck: bool) -> None:
    watched = Watched()
    step = 10 * CHECK_S * 1000 / STEP_MS  # tokens of ten streams
    made = 0.0
    stall, began = None, watched.now
    while stall is None and watched.now < began + 15:
        before, made = int(made), made + step / factor
        stall = watched.check(STREAMS, tokens=int(made) - before, pieces=int(made) - before)
    assert (stall is not None) == stuck
    if stall is not None:
        assert stall.kind == "slow"
        assert watched.now - began < 5.5, "4.3 s: at a twentieth of the speed, 6 of 20 seconds are explained"
        assert f"more than {SLOWDOWN:g} times slower than usual" in str(stall)


@pytest.mark.parametrize(("slowdown", "stuck"), [(5, False), (20, True)])
def test_a_slow_engine_whose_new_speed_was_learned_is_judged_by_its_usual_speed(slowdown: int, stuck: bool) -> None:
    assert LEARNED.decode is not None
    watched = Watched(LEARNED._replace(decode=LEARNED.decode._replace(base_ms=STEP_MS * slowdown)))
    watched.slowdown = slowdown
    each = round(10 * CHECK_S * 1000 / STEP_MS / slowdown)
    assert (watched.until_stuck(STREAMS, tokens=each, pieces=each) is not None) == stuck


def test_a_long_prefill_slows_the_streams_beside_it() -> None:
    watched = Watched()
    beside = LONG_PROMPT._replace(step_ms=1000.0, streams=10)
    assert all(watched.check(beside, tokens=2, pieces=2) is None for _ in range(100))


def test_other_clients_prompts_may_be_what_makes_it_slow() -> None:
    watched = Watched()
    watched.elsewhere = 1
    assert watched.until_stuck(STREAMS, tokens=5, pieces=5) is None


def test_prefills_between_the_steps_count_as_work() -> None:
    watched = Watched()
    for _ in range(200):
        watched.progress.add_prefill(2300, 0)  # 240 ms
        assert watched.check(STREAMS, tokens=2, pieces=2) is None


def test_without_work_nothing_is_measured() -> None:
    watched = Watched()
    watched.check(STREAMS)
    for _ in range(11):
        assert watched.check(STREAMS) is None
    watched.progress.rest()
    watched.now += 100
    for _ in range(12):
        assert watched.check(STREAMS) is None, "it counts from anew"


def test_clients_that_do_not_read_wait_for_nothing() -> None:
    watched = Watched()
    watched.check(STREAMS)
    assert watched.until_stuck(STREAMS._replace(streams=0)) is None
    assert watched.check(STREAMS) is None


def test_a_router_that_was_stopped_blames_nobody() -> None:
    watched = Watched()
    watched.check(STREAMS, tokens=100, pieces=100)
    watched.now += 3600
    assert watched.check(STREAMS) is None


def test_progress_after_a_stall() -> None:
    watched = Watched()
    watched.until_stuck(STREAMS)
    assert not watched.progress.moves
    assert watched.check(STREAMS, tokens=100, pieces=100) is None
    assert watched.progress.moves
