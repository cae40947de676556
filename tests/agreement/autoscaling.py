"""Signals for the size of a fleet against each other, on loads that rise and fall.

    python -m tests.agreement.autoscaling [--quick] [--jobs 2] [--chart FILE]

Each rule starts and drains simulated instances of `llama-3.1-8b-h100`, 1 to 12 of them and 2 at first, behind `warm`
without a pool. An instance gets requests 90 s after it was ordered, with an empty cache. A request misses when its
first token takes more than 2 s, or it fails. Instance-hours count from the order until the last request has left.

    router   `warmroute_desired_instances`; the instance leaves whose cache is worth least
    queue    HPA on the sum of `vllm:num_requests_waiting`, so many for each instance. The vLLM production stack's
             tutorial (docs/source/use_cases/autoscaling-keda.rst) has 5
    usage    HPA on the mean of `vllm:kv_cache_usage_perc`. AIBrix' sample (samples/autoscaling/hpa.yaml) has 50 %

All through HPA's formula and defaults: every 15 s, 10 % tolerance, at most 4 more or twice as many at once, down to
the largest count of 5 minutes. The newest instance leaves, as of a Deployment, where nothing else is said. Rivals read
their metrics as they are, a quarter of a second old. Other targets than the sources' are tried to find their best.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from router.lab.simulator.autoscaler import Autoscaling, ScalingRule
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome, compute_figures
from router.lab.simulator.run import simulate
from router.lab.simulator.scaling_rules import CacheUsage, NewestLeaves, QueueLength, RouterSignal
from router.lab.simulator.scenario import Scenario
from router.lab.sweep import options
from router.lab.workloads.model import Workload
from tests.agreement import autoscaling_chart
from tests.agreement.autoscaling_loads import bursts, diurnal
from tests.agreement.served import policy
from tests.suites.rows import wide_console

PROFILE, MOST, AT_FIRST = "llama-3.1-8b-h100", 12, 2
LIMIT_S = 2.0
JUDGED = "router"


class RouterSignalNewest(RouterSignal):
    """The router's count, and the newest instance leaves."""

    choose_leaving = NewestLeaves.choose_leaving


RULES: Mapping[str, Callable[[], ScalingRule]] = {
    JUDGED: RouterSignal,
    "router, newest leaves": RouterSignalNewest,
    **{f"queue {target:g}": lambda target=target: QueueLength(target) for target in (1, 5)},  # type: ignore[misc]
    **{f"usage {target:.0%}": lambda target=target: CacheUsage(target) for target in (0.2, 0.3, 0.4, 0.5)},  # type: ignore[misc]
}
FIXED = {"diurnal": 8, "bursts": 4}  # the peak's need
QUICK = (JUDGED, "queue 5", "usage 30%", "usage 50%")
LOADS: Mapping[str, Callable[[bool, int], Workload]] = {
    "diurnal": lambda quick, seed: diurnal(3600.0 if quick else 3 * 3600.0, 0.08, seed),
    "bursts": lambda quick, seed: bursts(1800.0 if quick else 5400.0, 8.0, 450.0 if quick else 900.0, seed),
}


class Task(NamedTuple):
    load: str
    rule: str
    seed: int
    quick: bool


class Result(NamedTuple):
    """One run. Times in seconds; shares of all requests, and of all prompt tokens."""

    task: Task
    instance_hours: float
    missed: float
    ttft_p50_s: float
    ttft_p99_s: float
    hits: float
    peak: int
    took_s: float  # CPU time


def measure(task: Task) -> Result:
    """Simulate one load with one rule."""
    began_s, fixed = time.process_time(), task.rule.startswith("fixed")
    scenario = Scenario(profile=options.load_profile(PROFILE), instances=FIXED[task.load] if fixed else MOST)
    autoscaling = None if fixed else Autoscaling(RULES[task.rule](), at_first=AT_FIRST)
    workload = LOADS[task.load](task.quick, task.seed)
    outcome = simulate(scenario, policy("warm"), workload, seed=task.seed, autoscaling=autoscaling)
    figures = compute_figures(outcome)
    return Result(
        task,
        count_instance_hours(outcome),
        count_missed(outcome) / len(outcome),
        figures.ttft_p50_s or 0.0,
        figures.ttft_p99_s or 0.0,
        figures.hit_share or 0.0,
        max((size.paid for size in outcome.sizes), default=outcome.instances),
        time.process_time() - began_s,
    )


def count_instance_hours(outcome: SimulationOutcome) -> float:
    """Return the hours that instances were paid for, from the beginning to the last answer."""
    if not outcome.sizes:
        return outcome.instances * outcome.took_s / 3600
    ends_s = [*(size.since_s for size in outcome.sizes[1:]), outcome.took_s]
    sizes = zip(outcome.sizes, ends_s, strict=True)
    return sum(size.paid * (end_s - size.since_s) for size, end_s in sizes) / 3600


def count_missed(outcome: SimulationOutcome) -> int:
    """Return the number of requests without a first token within the limit."""
    rows = zip(outcome.end, outcome.ttft_s, strict=True)
    return sum(end != RequestEnd.OK or ttft_s > LIMIT_S for end, ttft_s in rows)


def run(tasks: Sequence[Task], jobs: int, console: Console) -> list[Result]:
    """Return the results in the order of the tasks."""
    found: dict[Task, Result] = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(measure, task) for task in tasks]):
            one = future.result()
            found[one.task] = one
            said = f"{len(found)}/{len(tasks)} {one.task.load}, {one.task.rule}, seed {one.task.seed}"
            said += f": {one.instance_hours:.2f} instance-hours, {one.missed:.2%} missed, {one.took_s:.0f} s"
            console.print(said, style="dim", highlight=False)
    return [found[task] for task in tasks]


def tell(results: Sequence[Result], console: Console) -> None:
    """Print a table per load: means over the seeds, with the range of the misses."""
    for load in LOADS:
        table = Table(title=f"{load}: {LIMIT_S:g} s to the first token", box=box.MARKDOWN)
        for head in ("rule", "instance-hours", "missed", "of seeds", "TTFT p50", "p99", "hits", "peak"):
            table.add_column(head, justify="left" if head == "rule" else "right")
        for rule, own in by_rule(results, load).items():
            missed = [one.missed for one in own]
            table.add_row(
                rule,
                f"{fmean(one.instance_hours for one in own):.1f}",
                f"{fmean(missed):.1%}",
                f"{min(missed):.1%} to {max(missed):.1%}",
                f"{fmean(one.ttft_p50_s for one in own):.2f} s",
                f"{fmean(one.ttft_p99_s for one in own):.1f} s",
                f"{fmean(one.hits for one in own):.1%}",
                str(max(one.peak for one in own)),
            )
        console.print(table)


def by_rule(results: Sequence[Result], load: str) -> dict[str, list[Result]]:
    """Return the results of a load by rule."""
    found: dict[str, list[Result]] = {}
    for one in results:
        if one.task.load == load:
            found.setdefault(one.task.rule, []).append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, shorter loads, four rules")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--chart", type=Path, help="draw instance-hours over misses into this file")
    chosen = parser.parse_args()
    console = wide_console()
    seeds = (1,) if chosen.quick else (1, 2, 3)
    tasks = [
        Task(load, rule, seed, chosen.quick)
        for seed in seeds
        for load in LOADS
        for rule in (QUICK if chosen.quick else (*RULES, f"fixed, {FIXED[load]}"))
    ]
    results = run(tasks, chosen.jobs, console)
    tell(results, console)
    if chosen.chart:
        points = {
            load: {
                rule: (fmean(one.instance_hours for one in own), fmean(one.missed for one in own))
                for rule, own in by_rule(results, load).items()
            }
            for load in LOADS
        }
        autoscaling_chart.draw(points, JUDGED, chosen.chart)
    return 0


if __name__ == "__main__":
    sys.exit(main())
