"""The admission rules against each other, where sessions outgrow the caches and where they do not.

    python -m tests.agreement admission [--cells REGEX] [--seeds 3] [--reduced]

Agents (`codex`, and `claude`, whose sessions have sub-agents) in a closed loop, met in mid-session. The contexts of all
sessions, without those of sub-agents, are `times` the KV memory of the fleet. Policy `warm`; nobody is refused
(`max_wait_s` is a week). The window begins after 500 s. What is compared: requests per second, and the 90th percentile
of all that a request waits for, from its sending to its first token, admission included. Means over the seeds.

The bar for `fit`: in every cell that thrashes within 3 % of the best throughput and 10 % of the best p90 of all rules;
in the others at most 2 % of throughput behind no admission control.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from router.config.sections.admission import AdmissionConfig
from router.lab.simulator.outcome import compute_figures
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import LinkSpeed, Scenario, StoreScenario
from router.lab.sweep import options
from router.lab.workloads import source
from tests.agreement import measured, served
from tests.agreement.measured import Key, Measured
from tests.agreement.windows import Window

FILE = measured.ROOT / "build" / "agreement" / "admission.jsonl"
KV_TOKENS = 500_000
CONTEXT_TOKENS = {"codex": 49_000, "claude": 75_000}  # mean over a session's turns
POOL_TOKENS = 40_000_000  # it holds all contexts
A_WEEK_S = 7 * 86_400.0
RULES = ("none", "concurrency", "thunderagent", "progress_ttl", "fit")
JUDGED = "fit"
THROUGHPUT_WITHIN, P90_WITHIN, COST_WITHIN = 0.03, 0.10, 0.02
FULL, REDUCED = Window(500.0, 1400.0), Window(400.0, 1000.0)


class RulesCell(NamedTuple):
    times: float  # contexts of all sessions over the fleet's KV memory
    pool: float | None = None  # tokens per second of each instance's link; None: no pool
    profile: str = "plain"
    instances: int = 3
    thrash: bool = True
    preset: str = "codex"

    @property
    def name(self) -> str:
        pool = "no pool" if self.pool is None else f"pool {self.pool / 1000:g}k/s"
        agents = "" if self.preset == "codex" else f", {self.preset}"
        return f"{self.profile}, {self.instances} instances, {self.times:g} x memory, {pool}{agents}"

    @property
    def sessions(self) -> int:
        return round(self.times * KV_TOKENS / CONTEXT_TOKENS[self.preset]) * self.instances


CELLS = (
    *(RulesCell(times) for times in (1.2, 1.5, 2, 3, 4.5, 6)),
    RulesCell(1.5, profile="qwen3-32b-2xh100"),
    RulesCell(3, profile="qwen3-32b-2xh100"),
    RulesCell(2, 10_000),
    RulesCell(1.5, 20_000),
    RulesCell(3, 20_000),
    RulesCell(3, 40_000),
    RulesCell(2, preset="claude"),
    RulesCell(2, 20_000, preset="claude"),
    RulesCell(0.7, thrash=False),
    RulesCell(0.7, 20_000, thrash=False),
    RulesCell(2, 200_000, thrash=False),
)


class Mean(NamedTuple):
    """Over the seeds."""

    requests_per_s: float
    p90_s: float


class Verdict(NamedTuple):
    """`behind`: share of throughput; `over`: share of the p90. Both against the best rule, or `none` beside thrash."""

    cell: RulesCell
    behind: float
    over: float

    @property
    def met(self) -> bool:
        if not self.cell.thrash:
            return self.behind <= COST_WITHIN
        return self.behind <= THROUGHPUT_WITHIN and self.over <= P90_WITHIN


def config(rule: str) -> AdmissionConfig:
    return AdmissionConfig.model_validate({"enabled": True, "rule": {"name": rule}, "max_wait_s": A_WEEK_S})


def measure(cell: RulesCell, rule: str, seed: int, window: Window) -> Measured:
    began_s, admission = time.process_time(), config(rule)
    scenario = Scenario(
        profile=replace(options.load_profile(cell.profile), kv_tokens=KV_TOKENS),
        instances=cell.instances,
        store=None if cell.pool is None else StoreScenario(POOL_TOKENS, LinkSpeed(cell.pool)),
        admission=admission,
    )
    agents = source.load_workload(cell.preset, seed=seed, sessions=5 * cell.sessions)
    outcome = simulate(
        scenario,
        served.policy("warm"),
        agents,
        seed=seed,
        at_once=cell.sessions,
        staggered=True,
        until_s=window.until_s,
    )
    figures = compute_figures(outcome, since_s=window.since_s, until_s=window.until_s)
    took_s = time.process_time() - began_s
    return Measured(key_of(cell, rule, seed, window), measured.code_digest(), took_s, figures, outcome.preemptions)


def key_of(cell: RulesCell, rule: str, seed: int, window: Window) -> Key:
    digest = blake2b(config(rule).model_dump_json().encode(), digest_size=6).hexdigest()
    return Key(cell.name, rule, digest, seed, f"{window.since_s:g} to {window.until_s:g}")


def run(
    cells: Sequence[RulesCell],
    seeds: Sequence[int],
    window: Window,
    console: Console,
    file: Path = FILE,
    *,
    accept_old: bool = False,
) -> list[Measured]:
    """Measure what the same code has not measured yet, and return all. `accept_old`: other code's results count too."""
    code = measured.code_digest()
    known = {one.key: one for one in measured.read(file) if accept_old or one.code == code}
    found = []
    for seed in seeds:
        for cell in cells:
            for rule in RULES:
                key = key_of(cell, rule, seed, window)
                if (one := known.get(key)) is None:
                    one = measure(cell, rule, seed, window)
                    measured.keep(one, file)
                    console.print(f"{cell.name}, seed {seed}, {rule}: {one.took_s:.1f} s", style="dim", highlight=False)
                found.append(one)
    return found


def means(found: Iterable[Measured]) -> dict[str, dict[str, Mean]]:
    """Return the means over the seeds, by cell and rule."""
    scores = defaultdict(list)
    for one in found:
        if (score := one.score) is not None:
            scores[one.key.cell, one.key.arm].append(score)
    by_cell: dict[str, dict[str, Mean]] = defaultdict(dict)
    for (cell, rule), some in scores.items():
        rate, p90_s = fmean(one.requests_per_s for one in some), fmean(one.p90_s for one in some)
        by_cell[cell][rule] = Mean(rate, p90_s)
    return by_cell


def judge(cell: RulesCell, rules: Mapping[str, Mean]) -> Verdict:
    against = rules if cell.thrash else {"none": rules["none"]}
    best_rate = max(mean.requests_per_s for mean in against.values())
    best_p90_s = min(mean.p90_s for mean in against.values())
    own = rules[JUDGED]
    return Verdict(cell, 1 - own.requests_per_s / best_rate, own.p90_s / best_p90_s - 1)


def show(cells: Sequence[RulesCell], found: Iterable[Measured], console: Console) -> bool:
    """Print the table; return whether the bar is met in every cell."""
    table = Table(title="admission rules: requests/s, p90 of all waiting until the first token", box=box.MARKDOWN)
    for head in ("cell", *RULES, f"{JUDGED}: throughput behind best", "p90 over best", "bar"):
        table.add_column(head, justify="left" if head == "cell" else "right")
    by_cell, verdicts = means(found), []
    for cell in cells:
        rules = by_cell.get(cell.name, {})
        if rules.keys() != set(RULES):
            continue
        verdicts.append(verdict := judge(cell, rules))
        shown = (f"{rules[rule].requests_per_s:.2f}, {rules[rule].p90_s:.1f} s" for rule in RULES)
        bar = "met" if verdict.met else "missed"
        table.add_row(cell.name, *shown, f"{verdict.behind:.1%}", f"{verdict.over:.0%}", bar)
    console.print(table)
    met = sum(verdict.met for verdict in verdicts)
    console.print(f"bar met in {met} of {len(verdicts)} cells", highlight=False)
    return met == len(cells)
