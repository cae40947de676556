"""The search for the highest load, on fleets whose answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.lab.simulator.outcome import RequestEnd, ServiceLimits, SimulationOutcome
from router.lab.sweep.capacity import DOUBLINGS, STEP, CapacitySearch, search_capacity, share_served_well
from router.lab.sweep.cells import LoadLevel, SweepCell
from tests.router.lab.sweep.cells import a_cell


def outcome(*ends: tuple[float, float, int, RequestEnd]) -> SimulationOutcome:
    """(TTFT, duration, answer tokens, end) of each request."""
    made = SimulationOutcome(1)
    for ttft, duration, tokens, end in ends:
        made.ttft_s.append(ttft)
        made.duration_s.append(duration)
        made.output_tokens.append(tokens)
        made.end.append(end)
    made.took_s = 10.0
    return made


def up_to(capacity: float, seen: list[float] | None = None) -> object:
    """A fleet that serves all well up to a load, and nothing beyond."""

    def play(cell: SweepCell) -> SimulationOutcome:
        if seen is not None:
            seen.append(cell.load.value)
        return outcome((0.1 if cell.load.value <= capacity else 99.0, 100.0, 1, RequestEnd.OK))

    return play


def test_both_limits_count_and_whoever_was_refused_met_none() -> None:
    # TTFT 2 s, TPOT 0.1 s: 2 + 10 x 0.1 = 3 s for 11 tokens
    ends = [
        (2.0, 3.0, 11, RequestEnd.OK),
        (2.0, 3.1, 11, RequestEnd.OK),
        (2.1, 2.2, 11, RequestEnd.OK),
        (0.0, 0.0, 0, RequestEnd.SHED),
    ]
    assert share_served_well(outcome(*ends), ServiceLimits(2.0, 0.1)) == 0.25
    assert (
        share_served_well(outcome((1.0, 50.0, 1, RequestEnd.OK)), ServiceLimits(2.0, 0.1)) == 1.0
    )  # one token: no time per token


def test_no_requests_is_an_error() -> None:
    with pytest.raises(ValueError, match="no request was sent"):
        share_served_well(outcome(), ServiceLimits())


@given(st.floats(0.01, 200.0))
def test_the_answer_is_served_well_and_a_step_more_is_not(capacity: float) -> None:
    found = search_capacity(CapacitySearch(a_cell(load=LoadLevel("rate", 1.0))), up_to(capacity))  # type: ignore[arg-type]
    assert found.best is not None
    assert found.bounded
    assert found.best.load <= capacity < found.best.load * STEP * (1 + 1e-9)
    assert [tried.load for tried in found.tried] == sorted({tried.load for tried in found.tried})


def test_few_runs_are_needed() -> None:
    seen: list[float] = []
    search_capacity(CapacitySearch(a_cell(load=LoadLevel("rate", 1.0))), up_to(3.0, seen))  # type: ignore[arg-type]
    assert seen[:3] == [1.0, 2.0, 4.0]
    assert len(seen) == 3 + 4  # 2 to 4 is a factor 2: halved 4 times in its logarithm, it is below 1.05


def test_no_load_is_served_well() -> None:
    found = search_capacity(CapacitySearch(a_cell(load=LoadLevel("rate", 1.0))), up_to(0.0))  # type: ignore[arg-type]
    assert found.best is None
    assert len(found.tried) == DOUBLINGS + 1


def test_every_load_is_served_well() -> None:
    found = search_capacity(CapacitySearch(a_cell(load=LoadLevel("rate", 1.0))), up_to(float("inf")))  # type: ignore[arg-type]
    assert found.best is not None
    assert found.best.load == 2.0**DOUBLINGS
    assert not found.bounded
