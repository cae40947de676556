"""The rows of a view: every fact in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.fleet.load import Booking
from router.fleet.rows import ROW_MAX_AGE_S
from router.kvcache.events import TargetId
from scorers.contract import Overlap
from tests.suites.views import build_rows

PAGE = Gauges(2, 1, 0.25, 16, 1600, None, None)


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet(schema.FleetConfig())
    for name in names:
        fleet.join(schema.InstanceConfig(url=f"http://{name}:1", name=name))
        fleet.mark_ready(name, [ModelCard("m", None, None, None)], [0])
    return fleet


def test_a_row_says_what_is_known_and_none_for_the_rest() -> None:
    fleet = fleet_of("a", "b")
    fleet.apply_metrics("a", {0: PAGE}, sent_at=9.0)
    targets = fleet.candidates("m", (), 10.0)
    targets[0].book(100, 400)
    overlap = Overlap(300, 300, 300, 320, "events", 0.1)

    a, b = build_rows(targets, {TargetId("a/0"): overlap}, 10.0)

    assert (a.target, a.instance, a.rank) == ("a/0", "a", 0)
    assert (a.block_tokens, a.capacity_tokens, a.overlap) == (16, 1600, overlap)
    assert (a.load.requests, a.load.prefill_tokens, a.load.context_tokens) == (1, 100, 400)
    assert (a.load.running, a.load.waiting, a.load.elsewhere, a.load.metrics_age_s) == (2, 1, 3, 1.0)
    assert a.load.queued_ms == a.speed.prefill_ms(100, 300)
    assert (b.target, b.block_tokens, b.capacity_tokens, b.overlap) == ("b/0", None, None, None)
    assert (b.load.running, b.load.elsewhere, b.load.metrics_age_s) == (None, None, None)
    assert (b.speed.samples, b.speed.age_s) == (0, None)


def test_no_targets_no_rows() -> None:
    assert build_rows([], {}, 0.0) == ()


def test_what_a_target_holds_goes_into_its_row_with_or_without_an_overlap() -> None:
    fleet = fleet_of("a", "b")
    holds = {"a/0": 4800, "b/0": None}
    overlap = Overlap(300, 300, 300, 320, "events", 0.1)

    a, b = build_rows(
        fleet.candidates("m", (), 10.0), {TargetId("a/0"): overlap}, 10.0, lambda target: holds[target.id]
    )

    assert (a.held_tokens, a.overlap) == (4800, overlap)
    assert (b.held_tokens, b.overlap) == (None, None)


# the board


def test_a_row_is_kept_until_its_target_changes() -> None:
    fleet = fleet_of("a", "b")
    targets = fleet.candidates("m", (), 1.0)
    a, b = fleet.row_cache.rows(targets, {}, 1.0)
    again = fleet.row_cache.rows(targets, {}, 1.05)
    assert again[0] is a
    assert again[1] is b
    targets[1].book(100, 400)
    a_now, b_now = fleet.row_cache.rows(targets, {}, 1.06)
    assert a_now is a
    assert (b.load.requests, b_now.load.requests) == (0, 1)


def released(booking: Booking) -> None:
    booking.release()


@pytest.mark.parametrize(
    "change",
    [
        lambda target, booking: target.book(10, 10),
        lambda target, booking: booking.on_first_byte(),
        lambda target, booking: released(booking),
        lambda target, booking: target.apply_gauges(PAGE, 1.0),
        lambda target, booking: target.set_block_tokens(32),
        lambda target, booking: target.reset(),
        lambda target, booking: target.load_book.forget_gauges(),
    ],
)
def test_every_change_of_a_target_is_seen_at_once(change: Callable[[Target, Booking], object]) -> None:
    fleet = fleet_of("a")
    (target,) = fleet.candidates("m", (), 1.0)
    target.apply_gauges(PAGE._replace(running=9), 0.5)
    booking = target.book(100, 400)
    before = fleet.row_cache.rows([target], {}, 1.0)
    change(target, booking)
    now = fleet.row_cache.rows([target], {}, 1.0)
    assert now != before
    assert now == build_rows([target], {}, 1.0)


def test_ages_are_good_to_a_tenth_of_a_second() -> None:
    fleet = fleet_of("a")
    (target,) = fleet.candidates("m", (), 1.0)
    target.apply_gauges(PAGE, 1.0)
    ages = [
        fleet.row_cache.rows([target], {}, now)[0].load.metrics_age_s
        for now in (2.0, 2.0 + ROW_MAX_AGE_S - 0.01, 2.0 + ROW_MAX_AGE_S + 0.01)
    ]
    assert ages == [1.0, 1.0, 1.11]


def test_what_a_target_holds_is_asked_when_its_row_is_made_and_by_the_first_who_wants_to_know() -> None:
    fleet = fleet_of("a")
    (target,) = fleet.candidates("m", (), 1.0)
    asked: list[str] = []

    def held(of: Target) -> int:
        asked.append(of.id)
        return 1600

    assert fleet.row_cache.rows([target], {}, 1.0)[0].held_tokens is None
    assert fleet.row_cache.rows([target], {}, 1.0, held)[0].held_tokens == 1600
    assert fleet.row_cache.rows([target], {}, 1.05, held)[0].held_tokens == 1600
    assert asked == ["a/0"]
    target.book(1, 1)
    assert fleet.row_cache.rows([target], {}, 1.06, held)[0].held_tokens == 1600
    assert asked == ["a/0", "a/0"]


steps = st.sampled_from(["book", "on_first_byte", "release", "poll", "blocks", "leave", "drain", "undrain", "look"])


@given(st.lists(st.tuples(steps, st.sampled_from("abc")), max_size=30))
def test_cached_rows_equal_rows_built_anew(story: Sequence[tuple[str, str]]) -> None:
    """While time stands still, whatever happens in between."""
    fleet, bookings = fleet_of("a", "b", "c"), dict[str, list[Booking]]()
    overlaps = {TargetId("b/0"): Overlap(16, 16, 16, 32, "events", 0.1)}
    for step, name in story:
        target = fleet.target(TargetId(f"{name}/0"))
        if target is None:
            continue
        if step == "book":
            bookings.setdefault(name, []).append(target.book(10, 30))
        elif step in ("on_first_byte", "release") and bookings.get(name):
            getattr(bookings[name].pop() if step == "release" else bookings[name][-1], step)()
        elif step == "poll":
            target.apply_gauges(PAGE, 4.0)
        elif step == "blocks":
            target.set_block_tokens(32)
        elif step in ("drain", "undrain"):
            fleet.drain(name, step == "drain")
        elif step == "leave":
            fleet.leave(name)
        targets = fleet.candidates("m", (), 5.0)
        assert fleet.row_cache.rows(targets, overlaps, 5.0) == build_rows(targets, overlaps, 5.0)
