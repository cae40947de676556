"""The rows of a view: every fact in its place."""

from __future__ import annotations

from router.blocks.events import TargetId
from router.config import schema
from router.engines.base import Card, Gauges
from router.fleet.instances import Fleet
from router.fleet.view import rows
from scorers.contract import Overlap


def test_a_row_says_what_is_known_and_none_for_the_rest() -> None:
    fleet = Fleet(schema.Fleet())
    for name in ("a", "b"):
        fleet.join(schema.Instance(url=f"http://{name}:1", name=name))
        fleet.learned(name, [Card("m", None, None, None)], [0])
    fleet.polled("a", {0: Gauges(2, 1, 0.25, 16, 1600, None, None)}, sent_at=9.0)
    targets = fleet.candidates("m", (), 10.0)
    targets[0].book(100, 400)
    overlap = Overlap(300, 300, 300, 320, "events", 0.1)

    a, b = rows(targets, {TargetId("a/0"): overlap}, 10.0)

    assert (a.target, a.instance, a.rank) == ("a/0", "a", 0)
    assert (a.block_tokens, a.capacity_tokens, a.overlap) == (16, 1600, overlap)
    assert (a.load.requests, a.load.prefill_tokens, a.load.context_tokens) == (1, 100, 400)
    assert (a.load.running, a.load.waiting, a.load.elsewhere, a.load.metrics_age_s) == (2, 1, 3, 1.0)
    assert a.load.queued_ms == a.speed.prefill_ms(100, 300)
    assert (b.target, b.block_tokens, b.capacity_tokens, b.overlap) == ("b/0", None, None, None)
    assert (b.load.running, b.load.elsewhere, b.load.metrics_age_s) == (None, None, None)
    assert (b.speed.samples, b.speed.age_s) == (0, None)


def test_no_targets_no_rows() -> None:
    assert rows([], {}, 0.0) == ()


def test_what_a_target_holds_goes_into_its_row_with_or_without_an_overlap() -> None:
    fleet = Fleet(schema.Fleet())
    for name in ("a", "b"):
        fleet.join(schema.Instance(url=f"http://{name}:1", name=name))
        fleet.learned(name, [Card("m", None, None, None)], [0])
    holds = {"a/0": 4800, "b/0": None}
    overlap = Overlap(300, 300, 300, 320, "events", 0.1)

    a, b = rows(fleet.candidates("m", (), 10.0), {TargetId("a/0"): overlap}, 10.0, lambda target: holds[target.id])

    assert (a.held_tokens, a.overlap) == (4800, overlap)
    assert (b.held_tokens, b.overlap) == (None, None)
