"""The cells: all that the grid promises, each under a name of its own."""

from __future__ import annotations

from tests.agreement.cells import FIRST_PASS, Cell, all_cells, reduced_cells


def test_every_combination_is_there_once() -> None:
    cells = all_cells()
    clean = [cell for cell in cells if not cell.trouble]
    assert len({cell.name for cell in cells}) == len(cells)
    assert len(clean) == 90  # 3 sizes x 3 pools x (2 open x 3 rhos + 4 numbers of sessions)
    assert len(cells) == 90 + 4 * 6  # and four of them in six kinds of trouble


def test_names_tell_what_a_cell_is() -> None:
    assert Cell("codex", 16, 8, 40_000).name == "codex/16/n8/p40"
    assert Cell("tools", 0.9, 32, 0, "lost").name == "tools/0.9/n32/nopool/lost"


def test_thrash_is_where_sessions_outgrow_the_caches_and_nothing_keeps_them() -> None:
    assert Cell("codex", 24, 8, 0).thrash
    assert not Cell("codex", 16, 8, 0).thrash
    assert not Cell("codex", 48, 8, 40_000).thrash
    assert not Cell("tools", 1.2, 8, 0).thrash


def test_the_reduced_grid_and_the_first_pass_are_parts_of_the_whole() -> None:
    names = {cell.name for cell in all_cells()}
    assert {cell.name for cell in reduced_cells()} < names
    assert {cell.name for cell in FIRST_PASS} < names
    assert all(cell.clean in all_cells() for cell in all_cells())
