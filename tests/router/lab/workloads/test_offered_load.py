"""How fast an open workload is to come: by hand on round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.lab.engine_profile import EngineProfile
from router.lab.workloads.arrivals import speed_up
from router.lab.workloads.model import Session, Span, Turn, Workload
from router.lab.workloads.offered_load import (
    OfferedLoad,
    arrival_rate,
    measure_demand,
    set_rate,
    speed_factor,
    workload_speed_factor,
)
from router.lab.workloads.presets import CODEX, TOOLS

PROFILE = EngineProfile(
    name="round",
    kv_tokens=100_000,
    kv_bytes_per_token=1.0,
    us_per_token=100.0,
    ns_per_pair=0.0,
    us_per_decode=100.0,
    weights_ms=10.0,
    ns_per_context_token=100.0,
    step_ms=10.0,
    batched_tokens=1000,
    max_seqs=100,
)


def asked_at(*at: tuple[float, int, int]) -> Workload:
    """(when, source, tokens) of prompts that get 10 tokens each."""
    turns = [(start, Turn(0, (Span(source, tokens),), 10, 0.0)) for start, source, tokens in at]
    return Workload("by hand", 0, tuple(Session(i, at, (turn,)) for i, (at, turn) in enumerate(turns)), is_closed=False)


def test_the_demand_is_the_mean_request_with_nothing_cached() -> None:
    seen = measure_demand(asked_at((0.0, 1, 1100), (2.0, 1, 1100), (4.0, 2, 800)))
    assert seen.prompt_tokens == 1000
    assert seen.pairs == pytest.approx((2 * 1100**2 + 800**2) / 6)
    assert seen.output_tokens == 10
    assert seen.read_tokens == pytest.approx(10 * 1000 + 50)
    assert seen.requests_per_s == 0.5


def test_the_budget_of_a_step_bounds_the_requests_per_step() -> None:
    # 990 + 10 tokens: one request per step. 10 ms + max(1,000 x 0.1 ms, 10 ms + 10 x 1,000 x 0.1 us = 11 ms) = 110 ms
    asked = OfferedLoad(1.0, prompt_tokens=990, pairs=0, output_tokens=10, read_tokens=10_000)
    assert asked.capacity(PROFILE) == pytest.approx(1 / 0.110)


def test_slots_bound_the_requests_per_step() -> None:
    # 100 slots / 200 tokens: half a request per step: 10 ms + max(150 x 0.1 ms, 10 ms + 50,000 x 0.1 us) = 25 ms
    asked = OfferedLoad(1.0, prompt_tokens=100, pairs=0, output_tokens=200, read_tokens=100_000)
    assert asked.capacity(PROFILE) == pytest.approx(0.5 / 0.025)


def test_memory_bounds_the_requests_per_step() -> None:
    # contexts of 10,000 tokens: 10 at once, a tenth of a request per step: 10 + max(1 + 1, 10 + 10) = 30 ms
    asked = OfferedLoad(1.0, prompt_tokens=100, pairs=0, output_tokens=100, read_tokens=1_000_000)
    assert asked.capacity(PROFILE) == pytest.approx(0.1 / 0.030)


def test_sped_up_by_the_factor_the_workload_comes_at_that_load() -> None:
    workload = replace(TOOLS, requests=300).workload(1)
    factor = workload_speed_factor(workload, PROFILE, 4, 0.8)
    faster = speed_up(workload, factor)
    asked = measure_demand(faster)
    assert asked.requests_per_s == pytest.approx(0.8 * 4 * asked.capacity(PROFILE))
    assert workload_speed_factor(faster, PROFILE, 4, 0.8) == pytest.approx(1.0)


def test_load_and_fleet_scale_the_rate() -> None:
    asked = OfferedLoad(2.0, prompt_tokens=990, pairs=0, output_tokens=10, read_tokens=10_000)
    assert speed_factor(asked, PROFILE, 8, 1.2) == pytest.approx(2 * speed_factor(asked, PROFILE, 4, 1.2))
    assert speed_factor(asked, PROFILE, 8, 1.2) == pytest.approx(1.5 * speed_factor(asked, PROFILE, 8, 0.8))


def test_a_closed_loop_has_no_rate() -> None:
    workload = CODEX.scale(sessions=0.005, tokens=0.1, turns=0.1).workload(1)
    assert arrival_rate(workload) == 0.0
    with pytest.raises(ValueError, match="closed loop"):
        workload_speed_factor(workload, PROFILE, 8, 0.9)


def test_requests_come_at_the_rate_that_is_wanted() -> None:
    workload = asked_at((3.0, 1, 100), (5.0, 2, 100), (11.0, 3, 100))  # 2 gaps in 8 s
    assert arrival_rate(workload) == 0.25
    assert arrival_rate(set_rate(workload, 4.0)) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="no rate to change"):
        set_rate(asked_at((3.0, 1, 100)), 4.0)


def test_an_empty_workload_is_refused() -> None:
    with pytest.raises(ValueError, match="no requests"):
        measure_demand(Workload("nothing", 0, (), is_closed=False))
