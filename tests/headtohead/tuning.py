"""The best of twelve configurations of `cache_aware`, for a fleet and loads like those of the comparison.

    python -m tests.headtohead.tuning [--seed 1001]

Our copy of the rule (`copies.py`: 99 % of the choices) serves each load in virtual time, with a seed that no match has.
A configuration's mark is the geometric mean, over the loads, of its P90 of the time to the first token over the least
one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from itertools import product
from statistics import geometric_mean

from rich import box
from rich.table import Table

from router.config.schema import PolicyConfig
from tests.headtohead.loads import SIMULATED
from tests.headtohead.simulated import serve_alone
from tests.suites.rows import wide_console

SEED = 1001
ABSOLUTE, RELATIVE = (2, 4, 8, 16, 32, 64), (1.1, 1.5)

Settings = tuple[int, float]  # `balance_abs_threshold`, `balance_rel_threshold`


def measure(settings: Settings, seed: int) -> Mapping[str, float]:
    """Return the P90 of the time to the first token, in seconds, by load."""
    absolute, relative = settings
    scorer = {"name": "sglang_threshold", "balance_abs_threshold": absolute, "balance_rel_threshold": relative}
    copy = PolicyConfig.model_validate({"scorers": [scorer]})
    found = {}
    for load in SIMULATED:
        p90_s = serve_alone(copy, load, load.make(seed), seed, events=False).ttft_p90_s
        assert p90_s is not None
        found[load.name] = p90_s
    return found


def mark(seen: Mapping[Settings, Mapping[str, float]]) -> Mapping[Settings, float]:
    """Return the mark of each configuration; 1 would be the best of every load."""
    least = {load: min(one[load] for one in seen.values()) for one in seen.values() for load in one}
    return {settings: geometric_mean([one[load] / least[load] for load in one]) for settings, one in seen.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.headtohead.tuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=SEED)
    seed = parser.parse_args().seed
    console, seen = wide_console(highlight=False), dict[Settings, Mapping[str, float]]()
    for settings in product(ABSOLUTE, RELATIVE):
        console.print(f"balance_abs_threshold {settings[0]}, balance_rel_threshold {settings[1]} ...")
        seen[settings] = measure(settings, seed)
    table = Table("abs", "rel", "mark", *(load.name for load in SIMULATED), box=box.SIMPLE)
    for (absolute, relative), value in sorted(mark(seen).items(), key=lambda one: one[1]):
        p90s = (f"{seen[absolute, relative][load.name]:.2g}" for load in SIMULATED)
        table.add_row(str(absolute), str(relative), f"{value:.2f}", *p90s)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
