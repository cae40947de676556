"""The cells: what a fleet can meet, each under a name of its own."""

from __future__ import annotations

import pytest

from tests.agreement.cells import BUSY, FIRST_PASS, TROUBLES, Cell, all_cells, reduced_cells
from tests.agreement.kinds import AGENTS, OPEN


def test_every_cell_has_a_name_of_its_own() -> None:
    cells = all_cells()
    assert len({cell.name for cell in cells}) == len(cells)


def test_names_tell_what_a_cell_is() -> None:
    assert Cell("codex", 16, 8, 40_000).name == "codex/16/n8/p40"
    assert Cell("tools", 0.9, 32, 0, "lost").name == "tools/0.9/n32/nopool/lost"
    assert Cell("tools", 0.9, 32, 0, fleet="grows", rate="day").name == "tools/0.9/n32/nopool/day/grows"


@pytest.mark.parametrize("cells", [reduced_cells(), all_cells()], ids=["reduced", "full"])
def test_a_grid_has_every_kind(cells: tuple[Cell, ...]) -> None:
    assert {cell.workload for cell in cells} == {*OPEN, *AGENTS}
    assert {cell.fleet for cell in cells} == {"", "speeds", "cold", "grows", "shrinks"}
    assert {cell.rate for cell in cells} == {"", "day", "bursts"}
    assert {"lost", "slow", "all"} <= {cell.trouble for cell in cells}
    assert {3, 5, 7, 8, 16, 33, 64} <= {cell.instances for cell in cells}
    rhos = {cell.load for cell in cells if not cell.of_agents}
    assert (min(rhos), max(rhos)) == (0.5, 1.3)
    assert {Cell("groups", 1.1, instances, 0) for instances in (5, 8, 16)} <= set(cells)
    for workload in (*OPEN, *AGENTS):
        assert len({cell.instances for cell in cells if cell.workload == workload}) >= 2, workload


def test_busy_cells_meet_every_trouble_and_stand_without_it_too() -> None:
    cells = set(all_cells())
    assert {cell._replace(trouble=trouble) for cell in BUSY for trouble in TROUBLES} <= cells
    assert {cell.clean for cell in cells if cell.trouble} <= cells


def test_thrash_is_where_sessions_outgrow_the_caches_and_nothing_keeps_them() -> None:
    assert Cell("codex", 24, 8, 0).thrash
    assert not Cell("codex", 16, 8, 0).thrash
    assert not Cell("codex", 48, 8, 40_000).thrash
    assert Cell("claude", 12, 8, 0).thrash
    assert not Cell("tools", 1.2, 8, 0).thrash


def test_the_reduced_grid_and_the_first_pass_are_parts_of_the_whole() -> None:
    assert set(reduced_cells()) < set(all_cells())
    assert set(FIRST_PASS) < set(reduced_cells())
    assert not any(cell.thrash for cell in FIRST_PASS)
