"""Fair shares measured: a greedy tenant beside modest ones, shares by weight, and deadlines against llm-d's EDF.

    python -m tests.agreement.fair_shares greedy|weights|deadlines [--instances 8] [--seed 1] [--reduced]

Instances of `qwen3-32b-2xh100`, policy `warm`, in the simulator. `tools` and `few` are open loops of prompts that
share prefixes, `codex` is agents in a closed loop whose contexts fit the caches (4 M KV tokens each).

    greedy     three tenants that each ask for 15 % of what the fleet serves, and one that asks for two and a half
               times all of it, ten times a fourth; with the modest ones alone, all without and with fair shares
    weights    tenants of weight 1, 2 and 4 that all ask for more than the fleet serves: what each got over its share.
               Of `codex` only until 360 s: after that the sessions of the last one are all being served, none waits
    deadlines  one tenant, objectives of 2 and 8 s in turn, at 0.7, 1.0 and 1.5 times what the fleet serves: requests
               per second whose first token came in time

The bars: the modest tenants' p90 at most 1.1 times that without the greedy one, shares within 5 % of the weights, at
most 2 points of hit share behind no admission control; goodput at least that of `edf`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from router.config.sections.admission import AdmissionConfig
from router.features.admission.charges import price
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome, quantile
from router.lab.simulator.run import simulate_tenants
from router.lab.simulator.scenario import Scenario
from router.lab.simulator.tenants import TenantLoad
from router.lab.sweep import options
from router.lab.workloads import source
from tests.agreement import served
from tests.agreement.kinds import OPEN
from tests.agreement.windows import Window

PROFILE = "qwen3-32b-2xh100"
CAPACITY_PER_S = {"tools": 2.0, "few": 7.0}  # requests that an instance serves when it is full
KV_TOKENS = {"tools": 1_000_000, "few": None, "codex": 4_000_000}  # of an instance; None: that of the profile
WORKLOADS = tuple(KV_TOKENS)
MODEST, GREEDY = 0.15, 2.5
GREEDY_AGENTS = 40  # for each instance
WEIGHTS = (1.0, 2.0, 4.0)
OBJECTIVES_MS = (2_000.0, 8_000.0)
CODEX_WINDOW = Window(400.0, 800.0)  # the first prompts, 5 M tokens, are computed by then
EARLY_CODEX_WINDOW = Window(60.0, 360.0)
LOADS = (0.7, 1.0, 1.5)


class Trial(NamedTuple):
    """What all runs of a row have in common."""

    workload: str
    instances: int
    window: Window
    seed: int


class Served(NamedTuple):
    """One tenant within a window."""

    p90_s: float | None  # of those sent in it, to the first token
    charged_tokens: float  # of those that began in it
    requests_per_s: float


def load_of(trial: Trial, tenant: int, rho: float) -> TenantLoad:
    """Return a tenant that asks for `rho` of what the fleet serves; of agents, for that part of `GREEDY_AGENTS`."""
    name, own_seed, workload = f"tenant-{tenant}", trial.seed * 100 + tenant, trial.workload
    if workload == "codex":
        at_once = round(GREEDY_AGENTS * trial.instances * rho / GREEDY)
        return TenantLoad(name, source.load_workload("codex", seed=own_seed, sessions=4 * at_once), at_once)
    preset, per_s = OPEN[workload].preset, rho * CAPACITY_PER_S[workload] * trial.instances
    assert preset is not None
    requests = int(per_s * trial.window.until_s * 1.1) + 1
    return TenantLoad(name, replace(preset, requests=requests, per_s=per_s).workload(own_seed))


def serve(trial: Trial, rule: str, tenants: Sequence[TenantLoad]) -> SimulationOutcome:
    """`rule` none: without admission control."""
    profile, kv_tokens = options.load_profile(PROFILE), KV_TOKENS[trial.workload]
    admission = AdmissionConfig.model_validate({"enabled": True, "rule": {"name": rule}, "max_wait_s": 7 * 86_400.0})
    scenario = Scenario(
        profile=profile if kv_tokens is None else replace(profile, kv_tokens=kv_tokens),
        instances=trial.instances,
        admission=admission,
    )
    policy, until_s = served.policy("warm"), trial.window.until_s
    return simulate_tenants(scenario, policy, tenants, seed=trial.seed, until_s=until_s)


def look(outcome: SimulationOutcome, tenant: int, tenants: int, window: Window) -> Served:
    own = [row for row, session in enumerate(outcome.session) if session % tenants == tenant]
    own = [row for row in own if outcome.end[row] == RequestEnd.OK]
    sent = sorted(outcome.ttft_s[row] for row in own if window.since_s <= outcome.arrived_s[row] < window.until_s)
    ended = [row for row in own if _ended_in(outcome, row, window)]
    charged_tokens = sum(
        price(outcome.prompt_tokens[row] - outcome.local_tokens[row], outcome.output_tokens[row])
        for row in own
        if window.since_s <= outcome.arrived_s[row] + outcome.waited_s[row] < window.until_s
    )
    return Served(quantile(sent, 0.9), charged_tokens, len(ended) / (window.until_s - window.since_s))


def hit_share(outcome: SimulationOutcome, window: Window) -> float:
    rows = [row for row in range(len(outcome)) if outcome.end[row] == RequestEnd.OK and _ended_in(outcome, row, window)]
    prompts = sum(outcome.prompt_tokens[row] for row in rows)
    return sum(outcome.local_tokens[row] for row in rows) / max(1, prompts)


def _ended_in(outcome: SimulationOutcome, row: int, window: Window) -> bool:
    return window.since_s <= outcome.arrived_s[row] + outcome.duration_s[row] < window.until_s


def goodput(outcome: SimulationOutcome, window: Window) -> float:
    """Return requests per second, of those sent within the window, whose first token came within their objective."""
    good = 0
    for row, session in enumerate(outcome.session):
        within_s = OBJECTIVES_MS[session % len(OBJECTIVES_MS)] / 1e3
        sent = window.since_s <= outcome.arrived_s[row] < window.until_s
        good += sent and outcome.end[row] == RequestEnd.OK and outcome.ttft_s[row] <= within_s
    return good / (window.until_s - window.since_s)


def measure_greedy(trial: Trial) -> list[str]:
    """Return a row: the worst p90 of the modest tenants over that without the greedy one, and hit shares."""
    modest = [load_of(trial, number, MODEST) for number in range(3)]
    everybody = [*modest, load_of(trial, 3, GREEDY)]
    cells, alone = [trial.workload], serve(trial, "none", modest)
    before = [look(alone, number, 3, trial.window).p90_s or 0.0 for number in range(3)]
    cells.append(", ".join(f"{p90_s:.2f}" for p90_s in before))
    for rule in ("none", "saturation", "fit"):
        outcome = serve(trial, rule, everybody)
        found = [look(outcome, number, 4, trial.window) for number in range(4)]
        times = max((one.p90_s or 0.0) / p90_s for one, p90_s in zip(found, before, strict=False))
        p90s = ", ".join(f"{one.p90_s or 0.0:.2f}" for one in found[:3])
        per_s = sum(one.requests_per_s for one in found)
        cells.append(f"{p90s} ({times:.2f} x), {hit_share(outcome, trial.window):.1%}, {per_s:.2f}/s")
    return cells


def measure_weights(trial: Trial) -> list[str]:
    """Return a row: what each tenant got of the fleet over what its weight says."""
    loads = [load_of(trial, number, GREEDY)._replace(weight=weight) for number, weight in enumerate(WEIGHTS)]
    cells = [trial.workload]
    for rule in ("none", "saturation"):
        outcome = serve(trial, rule, loads)
        costs = [look(outcome, number, 3, trial.window).charged_tokens for number in range(3)]
        shares = [cost / sum(costs) / (weight / sum(WEIGHTS)) for cost, weight in zip(costs, WEIGHTS, strict=True)]
        cells.append(", ".join(f"{share:.3f}" for share in shares))
    return cells


def measure_deadlines(trial: Trial, rho: float) -> list[str]:
    """Return a row: goodput of no admission control, llm-d's EDF and deadlines in fair shares."""
    load = load_of(trial, 0, rho)._replace(ttft_ms=OBJECTIVES_MS)
    found = [goodput(serve(trial, rule, [load]), trial.window) for rule in ("none", "edf", "saturation")]
    return [f"{trial.workload}, {rho:g}", *(f"{per_s:.2f}" for per_s in found)]


HEADS = {
    "greedy": ("workload", "modest alone: p90 s", "`none`: p90 s, hits, requests", "`saturation`", "`fit`"),
    "weights": ("workload", "`none`: share over weight", "`saturation`"),
    "deadlines": ("workload, load", "`none`: in time/s", "`edf`", "`saturation`"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=HEADS)
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reduced", action="store_true", help="a shorter window")
    chosen = parser.parse_args()
    open_window = Window(40.0, 100.0) if chosen.reduced else Window(60.0, 360.0)
    if chosen.what == "weights" and not chosen.reduced:
        open_window = Window(150.0, 450.0)  # charges are corrected when answers end: the cold start's by then
    table = Table(*HEADS[chosen.what], box=box.MARKDOWN)
    for workload in WORKLOADS:
        window = open_window
        if workload == "codex":
            window = CODEX_WINDOW if chosen.what == "greedy" else EARLY_CODEX_WINDOW
        trial = Trial(workload, chosen.instances, window, chosen.seed)
        if chosen.what == "greedy":
            table.add_row(*measure_greedy(trial))
        elif chosen.what == "weights":
            table.add_row(*measure_weights(trial))
        elif workload != "codex":
            for rho in LOADS:
                table.add_row(*measure_deadlines(trial, rho))
        print(f"{workload} done", file=sys.stderr, flush=True)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
