"""Who takes part: every unit once, in the order in which they came, and never more than fit."""

from __future__ import annotations

import pytest

from router.scheduling.experiments import enrolment
from router.scheduling.experiments.enrolment import Enrolment
from tests.router.scheduling.experiments.traffic import a_record


def test_requests_of_one_unit_come_together() -> None:
    roll = Enrolment(20.0, returns=True)
    unit = roll.enrol(0, b"u", a_record(1, 100.0))
    assert unit is not None
    assert roll.enrol(0, b"u", a_record(2, 119.0)) is unit
    assert roll.enrol(0, b"u", a_record(3, 121.0)) is None, "too late"
    assert roll.enrol(1, b"u", a_record(4, 105.0)) is None, "on another arm"
    assert (len(roll), roll.enrolled, roll.open[0]) == (1, 1, 1)
    assert not roll.has_elapsed(unit, 119.9)
    assert roll.has_elapsed(unit, 120.0)


def test_units_leave_in_the_order_of_their_arrival_and_count_once() -> None:
    roll = Enrolment(20.0, returns=True)
    assert roll.first is None
    first = roll.enrol(0, b"u", a_record(1, 0.0))
    second = roll.enrol(1, b"v", a_record(2, 1.0))
    assert roll.first is first
    roll.leave()
    assert roll.first is second
    assert roll.enrol(0, b"u", a_record(3, 50.0)) is None
    assert (roll.open[0], roll.open[1]) == (0, 1)


def test_requests_that_are_units_are_not_remembered() -> None:
    roll = Enrolment(0.0, returns=False)
    roll.enrol(0, b"u", a_record(1, 0.0))
    roll.leave()
    assert roll.enrol(0, b"u", a_record(2, 1.0)) is not None


def test_what_does_not_fit_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "OPEN_UNITS", 2)
    roll = Enrolment(20.0, returns=True)
    assert [roll.enrol(0, name, a_record(i, 0.0)) is None for i, name in enumerate([b"a", b"b", b"c", b"c"])] == [
        False, False, True, True,
    ]  # fmt: skip
    assert roll.rejected == 1
    roll.leave()
    assert roll.enrol(0, b"c", a_record(9, 1.0)) is None, "half of a unit would be another unit"


def test_the_longest_unseen_name_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "CLOSED_UNITS", 2)
    roll = Enrolment(20.0, returns=True)
    for i, name in enumerate([b"a", b"b"]):
        roll.enrol(0, name, a_record(i, 0.0))
        roll.leave()
    assert roll.enrol(0, b"a", a_record(3, 50.0)) is None  # seen again
    roll.enrol(0, b"c", a_record(4, 60.0))
    roll.leave()
    assert roll.forgotten == 1
    assert roll.enrol(0, b"a", a_record(5, 70.0)) is None
    assert roll.enrol(0, b"b", a_record(6, 80.0)) is not None


def test_a_unit_counts_with_so_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "UNIT_REQUESTS", 2)
    roll = Enrolment(20.0, returns=True)
    for number in range(2):
        unit = roll.enrol(0, b"u", record := a_record(number, 0.0))
        assert unit is not None
        unit.running[number] = record
    assert roll.enrol(0, b"u", a_record(2, 0.0)) is None
