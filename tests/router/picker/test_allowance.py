"""What an address may send, by work and by time."""

from __future__ import annotations

import pytest

from router.clock import ManualClock
from router.picker import allowance
from router.picker.allowance import CONNECTION, Allowance, AllowanceRule, Allowances

RULE = AllowanceRule(start=100, per_s=10, most=300, message=2, end=1, connections=3)


def test_time_fills_to_the_start_and_work_to_the_most() -> None:
    one = Allowance(RULE, 0.0)
    one.left = -20.0
    one.refill(4.0)
    assert one.left == 20.0  # -20 + 4 s * 10
    one.refill(1000.0)
    assert one.left == 100.0
    one.left = 299.0
    for _ in range(3):
        one.earn_end()
    one.refill(2000.0)
    assert one.left == 300.0, "what work has earned stays"


def test_all_connections_of_an_address_draw_on_one_allowance() -> None:
    book = Allowances(RULE, ManualClock().now)
    first, second, other = (book.open(address) for address in ("a", "a", "b"))
    assert first is not None
    assert first is second
    assert other is not None
    assert (first.left, other.left) == (100 - 2 * CONNECTION, 100 - CONNECTION)
    assert book.open("a") is first
    assert book.open("a") is None, "as many connections as it may have"
    book.close(first)
    assert book.open("a") is first


def test_reconnecting_does_not_fill_it() -> None:
    clock = ManualClock()
    book = Allowances(RULE, clock.now)
    opened = book.open("a")
    assert opened is not None
    opened.left = 0.0
    book.close(opened)
    assert book.open("a") is None
    clock.advance(1.0)
    again = book.open("a")
    assert again is opened
    assert again.left == 10 - CONNECTION


def test_addresses_are_forgotten_when_they_are_full_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "ADDRESSES", 3)
    clock = ManualClock()
    book = Allowances(RULE, clock.now)
    open_, *closed = (book.open(address) for address in "abc")
    for one in closed:
        assert one is not None
        book.close(one)
    assert book.open("d") is book.open("e"), "they share one while there is no room"
    assert len(book) == 3
    clock.advance(1.0)
    assert book.open("f") is not book.open("g")
    assert len(book) == 3
    assert book.open("a") is open_, "it is connected"
