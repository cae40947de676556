"""The simulation that is timed runs, and its time is counted per request."""

from __future__ import annotations

from tests.bench.simulated import minutes_per_million


def test_a_simulation_takes_cpu_time() -> None:
    assert minutes_per_million(requests=30, instances=3) > 0.0
