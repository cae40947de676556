"""What becomes of a request, and what a unit's requests come to together."""

from __future__ import annotations

from math import inf

import pytest

from router.scheduling.experiments.unit import (
    ExperimentUnit,
    first_byte_ms,
    has_failed,
    is_counted,
    last_byte_ms,
    slow_share,
)
from router.scheduling.policy.record import Record
from tests.router.scheduling.experiments.traffic import a_record, finish


def ended(**outcome: object) -> Record:
    return finish(a_record(1, 0.0), **outcome)


@pytest.mark.parametrize(
    ("outcome", "fails", "counted", "first", "last"),
    [
        ({}, False, True, 100.0, 1000.0),
        ({"status": 500}, True, True, inf, inf),
        ({"status": 503, "ttft_ms": None}, True, True, inf, inf),
        ({"status": 429, "ttft_ms": None}, True, True, inf, inf),
        ({"status": None, "ttft_ms": None, "end": "died"}, True, True, inf, inf),
        ({"end": "broken"}, True, True, inf, inf),
        ({"status": 404}, False, False, 100.0, 1000.0),
        ({"status": None, "ttft_ms": None, "end": "client_gone"}, False, True, -1000.0, -1000.0),
        ({"end": "client_gone"}, False, True, 100.0, -1000.0),
    ],
    ids=["well", "500", "503", "429", "died", "broken", "404", "left before", "left while it ran"],
)
def test_what_a_request_comes_to(
    outcome: dict[str, object], fails: bool, counted: bool, first: float, last: float
) -> None:
    record = ended(**outcome)
    assert (has_failed(record), is_counted(record)) == (fails, counted)
    assert (first_byte_ms(record), last_byte_ms(record)) == (first, last)


def test_one_that_was_never_placed_has_failed() -> None:
    record = ended(status=503, ttft_ms=None)
    record.attempts = []
    assert has_failed(record)


def test_a_record_that_is_still_open_is_refused() -> None:
    record = ended(status=None, ttft_ms=None, end="client_gone")
    record.duration_ms = None
    with pytest.raises(ValueError, match="record r-1 has no duration: close the record before"):
        first_byte_ms(record)


def test_the_share_of_slow_ones() -> None:
    assert slow_share([50.0, 150.0, inf, 80.0], 100.0) == 0.5
    assert slow_share([50.0, 100.0], 100.0) == 0.0
    assert slow_share([-150.0, 50.0], 100.0) == 0.5  # left after 150: slower than 100 for certain
    assert slow_share([-80.0, 50.0], 100.0) == 0.0  # left after 80: who knows
    assert slow_share([-80.0], 100.0) is None
    assert slow_share([], 100.0) is None
    assert slow_share([50.0, inf], inf) == 0.5  # nothing is slower than what failed


def a_unit(*outcomes: dict[str, object]) -> ExperimentUnit:
    unit = ExperimentUnit(0, 0.0)
    for number, outcome in enumerate(outcomes):
        record = a_record(number, 0.0)
        unit.running[number] = record
        unit.end_request(finish(record, **outcome))
    return unit


def test_a_units_values() -> None:
    unit = a_unit(
        {"tokens": (1000, 900)}, {"tokens": (3000, 300)}, {"status": 500}, {"status": 404, "tokens": (50, 50)}
    )
    assert unit.hit_share == 1200 / 4000
    assert unit.error_rate == 1 / 3
    assert list(unit.first_bytes) == [100.0, 100.0, inf]
    assert not unit.running


def test_a_unit_that_tells_nothing() -> None:
    unit = a_unit({"status": 400}, {"status": None, "ttft_ms": None, "end": "client_gone"})
    assert unit.hit_share is None
    assert unit.error_rate is None
    assert list(unit.first_bytes) == [-1000.0]


def test_an_engine_that_says_more_was_cached_than_asked_does_not_give_more_than_all() -> None:
    assert a_unit({"tokens": (100, 128)}).hit_share == 1.0


def test_who_hangs_is_not_waited_for() -> None:
    unit = a_unit({})
    silent, streaming = a_record(8, 10.0), a_record(9, 10.0)
    streaming.ttft_ms = 700.0
    unit.running = {8: silent, 9: streaming}
    assert not unit.is_hanging(14.0, first_byte_s=5.0, last_byte_s=20.0)
    assert not unit.is_hanging(16.0, first_byte_s=5.0, last_byte_s=20.0), "the stream may still end"
    assert unit.is_hanging(31.0, first_byte_s=5.0, last_byte_s=20.0)
    unit.close()
    assert list(unit.first_bytes) == [100.0, inf, 700.0]
    assert list(unit.last_bytes) == [1000.0, inf, inf]
    assert unit.error_rate == 0.0, "that they will fail is not known"
