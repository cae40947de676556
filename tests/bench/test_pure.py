"""The pure build beside the compiled one: which lines belong together."""

from __future__ import annotations

from tests.bench.figures import Bar, Line, beside
from tests.bench.pure import put_beside


def test_values_of_the_pure_build_come_beside_those_of_the_same_name() -> None:
    bar = Bar(1.25, "ratio")
    ours = [beside("CPU", "us", [50.0], [40.0], "peer", bar), Line("late", "", [0.0])]
    pure = [Line("other", "", [7.0]), beside("CPU", "us", [100.0], [50.0], "peer", bar)]
    cpu, late = put_beside(ours, pure)
    assert (cpu.ours, cpu.ratios, cpu.pure, cpu.pure_ratios, cpu.met) == ([50.0], [1.25], [100.0], [2.0], True)
    assert late == ours[1]
