"""Simulate routers and engines for hours of virtual time.

    python -m tests.simulation HOURS [--seed N] [--minutes M]

Runs with M minutes of load each, with seeds from N on, until HOURS have been simulated. For each violation of an
invariant it prints the seed, the virtual time and the last faults; `0 --seed N` plays that run again, exactly.
"""

from __future__ import annotations

import argparse
import sys
from time import monotonic

from tests.simulation.world import Run, run_world

MINUTES = 10.0


def main() -> int:
    """Return 1 if an invariant was violated, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("hours", type=float)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of load in each run")
    arguments = parser.parse_args()
    began_s, virtual_s, seed, failed = monotonic(), 0.0, arguments.seed, 0
    while True:
        run = run_world(seed, arguments.minutes)
        virtual_s += run.virtual_s
        failed += bool(run.violations)
        _print_run(run, virtual_s / 3600 / ((monotonic() - began_s) / 60))
        if virtual_s >= 3600 * arguments.hours:
            break
        seed += 1
    print(f"{virtual_s / 3600:.1f} hours, {seed - arguments.seed + 1} runs, {failed} of them failed")
    return 1 if failed else 0


def _print_run(run: Run, speed: float) -> None:
    print(
        f"seed {run.seed}: {run.requests} requests, {run.finished} finished, {run.faults} faults, "
        f"{run.packets} packets, trace {run.trace}, {speed:.2f} hours a minute",
        flush=True,
    )
    for violation in run.violations:
        print(f"  VIOLATION at {violation.at_s:.3f} s: {violation.what}")
    if run.violations:
        for at_s, what in run.violations[0].history:
            print(f"    {at_s:10.3f} s  {what}")


if __name__ == "__main__":
    sys.exit(main())
