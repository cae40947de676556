"""The benchmark as a whole: what it measures has names, and what it takes is bounded."""

from __future__ import annotations

from tests.bench.rows import BESIDE_PURE, ROWS

FULL_MINUTES, QUICK_MINUTES = 52, 9
PURE_MINUTES, QUICK_PURE_MINUTES = 30, 4  # more on a compiled build


def test_every_row_has_a_name_of_its_own_that_is_a_file_name() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name.islower() for name in names)


def test_all_of_it_takes_less_than_is_promised() -> None:
    assert sum(row.full_s for row in ROWS) < FULL_MINUTES * 60
    assert sum(row.quick_s for row in ROWS) < QUICK_MINUTES * 60
    assert all(row.quick_s < row.full_s for row in ROWS)


def test_the_pure_build_beside_takes_as_much_again_as_is_promised() -> None:
    both = [row for row in ROWS if row.name in BESIDE_PURE]
    assert len(both) == len(BESIDE_PURE)
    assert sum(row.full_s for row in both) < PURE_MINUTES * 60
    assert sum(row.quick_s for row in both) < QUICK_PURE_MINUTES * 60
