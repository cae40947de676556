"""Simulated and real, the same agents: where their prompt tokens come from, `python -m tests.agreement.stack [FOLDER]`.

The coding agents of `codex`, scaled down to what two CPU engines can serve, talk to real vLLM over a real Mooncake
Store behind the real router (`tests.bench.real_stack` does it), and to two simulated instances of the profile that was
fitted to those engines (`cpu-tiny`). The caches are so small that sessions push each other out of them. Compared are
shares of all prompt tokens: found in the engine's own cache, brought by the pool, computed; vLLM's own counters on the
one side, the outcome's columns on the other. They should be within `BAR` of each other.

Who goes where, and who pushes out whom, hangs on milliseconds, so one run says little: of the cache-aware arm, repeated
runs of one seed differ in their local share with a standard deviation of 4 to 5 points, real and simulated alike (five
real runs of seed 1: 51.6, 52.0, 54.0, 61.1 and 68.1 %, the last one with a later form of `warm`). Hence
means: the simulated ones over the engine speeds `SPEEDS`, the real ones over several seeds, held within `BAR` or two
standard errors of the real mean, whichever is more. `+-` is what a single simulated run is off its mean.

What a difference can come from, and what was found:

  * Not from the caches. Admissions recorded inside the real engines, replayed into `BlockCache` with live requests in
    whole blocks, find the same number of blocks in 8 of 12 arms and at most 0.24 points of prompt tokens less in the
    others (one arm, request by request: `tests/router/lab/simulator/test_block_cache.py`), while saves and loads
    hold blocks or not. The fast engine counts tokens instead, 0 to 0.6 points more: a block is left out for it.
  * From where requests go. Sessions that moved left a target that held more of their prompt in 109 of 117 cases of five
    real runs, for one with 1.1 to 2.1 s less to wait (means): the pool makes leaving cheap. So expected waits decide,
    and those depend on what the router knows of speeds. The simulated routers used to begin with the priors of a GPU,
    which know next to no attention: at 2.5 to 4 times the profile's times they expected 0.4 to 0.6 s at a target, real
    ones 0.9 to 1.6 s; with the priors of `configs/stack-cpu.yaml`, which the real ones have, 0.9 to 1.5 s.
  * From a machine that is never ours alone. Steps took 2.1 to 4.1 times the profile's, by run, and within a run the
    quickest and the slowest tenth are a factor of 2 apart: `PHASE`. That moves 1 to 2 points to the pool.
  * Not modelled, a point or less: the store's answer to a lookup is used a step later (`lookup_async`), and a load of
    a busy engine takes as much longer as its steps do.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, pstdev
from tempfile import mkdtemp
from typing import NamedTuple

from router.clock import SystemClock
from router.config.reader import load_policies, read_config
from router.config.schema import Config, PolicyConfig
from router.lab.rng import Rng
from router.lab.simulator.outcome import SimulationOutcome
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import EventLags, InstanceFailure, LinkSpeed, Scenario, StoreScenario, Trouble
from router.lab.sweep.options import load_profile
from router.lab.workloads.distributions import LogNormal, draw_gap_s
from router.lab.workloads.model import Workload
from router.lab.workloads.presets import CODEX
from tests.bench.real_stack.agents import AgentsReport, BenchArm, compare_arms, default_arms
from tests.bench.real_stack.environment import environment_factory

ROOT = Path(__file__).parents[2]
BAR = 0.03
POLICY = "warm"

KV_BYTES = 128 << 20
POOL_BYTES = 2 << 30
CONTEXT_TOKENS = 8192
BLOCK_TOKENS = 128  # what vLLM takes on CPUs

POOL_LINK = LinkSpeed(tokens_per_s=125_000, base_ms=11)
"""TTFT of prompts of 512 to 12,288 tokens from the store beyond that of a local hit: `fit_stack.py`."""

LAGS = EventLags(events_s=0.01, metrics_s=0.25)


class Size(NamedTuple):
    """Of the workload: a session's median turns, and a factor on all lengths and on all pauses."""

    sessions: int
    turns: int
    tokens: float
    think: float

    def workload(self, seed: int) -> Workload:
        shares = {"sessions": self.sessions / CODEX.sessions, "turns": self.turns / CODEX.turns.median}
        return CODEX.scale(tokens=self.tokens, think=self.think, **shares).workload(seed)


FULL, REDUCED = Size(8, 10, 0.15, 0.2), Size(4, 8, 0.15, 0.2)
SPEEDS = tuple(0.8 * 5 ** (number / 15) for number in range(16))  # times as long, to 4: see above

PHASE = LogNormal(1.0, 0.3)
"""How many times as long as typical in its run a step takes, by the engines' own step times."""

PHASE_S = 3.0  # mean time for which an engine is taken to keep one speed
PHASES = 200  # more than the longest run has


class Shares(NamedTuple):
    """Of all prompt tokens."""

    local: float
    pool: float

    @classmethod
    def mean(cls, runs: Sequence[Shares]) -> Shares:
        return cls(fmean(run.local for run in runs), fmean(run.pool for run in runs))

    @property
    def computed(self) -> float:
        return 1 - self.local - self.pool

    def apart(self, other: Shares) -> float:
        """The largest difference of the three."""
        return max(abs(self.local - other.local), abs(self.pool - other.pool), abs(self.computed - other.computed))


class StandardErrors(NamedTuple):
    """Of the means over the real runs, taking single real runs to differ as much as single simulated ones do."""

    local: float
    pool: float
    computed: float

    @classmethod
    def of(cls, simulated: Sequence[Sequence[Shares]]) -> StandardErrors:
        """Return those of as many real runs as there are seeds here, each with its simulated runs."""

        def error(share: Callable[[Shares], float]) -> float:
            variances = [pstdev(map(share, runs)) ** 2 for runs in simulated]
            return math.sqrt(fmean(variances) / len(simulated))

        return cls(error(lambda run: run.local), error(lambda run: run.pool), error(lambda run: run.computed))


class Row(NamedTuple):
    """Means over all runs."""

    arm: str
    real: Shares
    simulated: Shares
    spread: float  # how far a single simulated run is off the mean of its seed, at the median
    errors: StandardErrors

    @property
    def apart(self) -> float:
        return self.real.apart(self.simulated)


async def real(workload: Workload, chosen: Sequence[BenchArm], folder: Path, clock: SystemClock) -> dict[str, Shares]:
    """By arm. Starts the stack, without a pool and with one, for the time of it; logs go to the folder."""
    report = AgentsReport(workload, "")
    await compare_arms(
        report, chosen, environment_factory(_settings(), folder, _say), folder, clock, lambda arm, turns: None
    )
    found: dict[str, Shares] = {}
    for outcome in report.outcomes:
        assert outcome.complete, (outcome.arm.name, outcome.failures, outcome.notes)
        assert not outcome.failures, (outcome.arm.name, outcome.failures)
        _say(f"{outcome.arm.name}: {len(outcome.turns)} turns in {outcome.took_s:.0f} s")
        counted = outcome.engines
        assert counted is not None
        assert counted.prompt_tokens
        lost = (counted.failed_keys or 0.0) * BLOCK_TOKENS  # promised by the pool, computed after all
        pool = ((counted.pool_tokens or 0.0) - lost) / counted.prompt_tokens
        found[outcome.arm.name] = Shares((counted.local_tokens or 0.0) / counted.prompt_tokens, pool)
    return found


def simulated(
    workload: Workload, arm: BenchArm, policies: Mapping[str, PolicyConfig], speeds: Sequence[float] = SPEEDS
) -> list[Shares]:
    """Return the shares at each of the speeds."""
    profile = load_profile("cpu-tiny")
    # vLLM keeps one to itself, and the last block of each of two or three requests is half empty
    blocks = KV_BYTES // int(profile.kv_bytes_per_token) // BLOCK_TOKENS - 2
    store = StoreScenario(int(POOL_BYTES / profile.kv_bytes_per_token), POOL_LINK) if arm.pool else None
    runs = []
    for times in speeds:
        slowed = replace(
            profile,
            kv_tokens=blocks * BLOCK_TOKENS,
            us_per_token=profile.us_per_token * times,
            ns_per_pair=profile.ns_per_pair * times,
            ns_per_context_token=profile.ns_per_context_token * times,
            step_ms=profile.step_ms * times,
        )
        scenario = Scenario(
            profile=slowed,
            instances=2,
            block_tokens=BLOCK_TOKENS,
            store=store,
            lags=LAGS,
            trouble=Trouble(failures=speed_phases(Rng(round(100 * times)), 2)),
            speed_prior=_settings().fleet.speed_prior,
        )
        outcome = simulate(scenario, policies[arm.policy], workload, seed=1, at_once=len(workload.sessions))
        runs.append(_shares(outcome))
    return runs


def speed_phases(rng: Rng, instances: int) -> tuple[InstanceFailure, ...]:
    """Return phases in which an instance is slower or faster than typical, as other work on its machine makes it."""
    phases = []
    for instance in range(instances):
        since_s = 0.0
        for _ in range(PHASES):
            until_s = since_s + draw_gap_s(rng, 1 / PHASE_S)
            # It ends just before the next one begins, whose factor its end would otherwise remove.
            phases.append(InstanceFailure("slow", instance, since_s, until_s - 1e-6, PHASE.draw(rng)))
            since_s = until_s
    return tuple(phases)


def compared(size: Size, seeds: Sequence[int], folder: Path, arms: Sequence[BenchArm] | None = None) -> list[Row]:
    """The means over the seeds, of all default arms unless some are named. Takes minutes for each seed and arm."""
    policies, clock, chosen = load_policies(_settings()), SystemClock(), arms or default_arms(POLICY)
    theirs: dict[str, list[Shares]] = {arm.name: [] for arm in chosen}
    ours: dict[str, list[list[Shares]]] = {arm.name: [] for arm in chosen}
    for seed in seeds:
        workload = size.workload(seed)
        for arm in chosen:
            ours[arm.name].append(simulated(workload, arm, policies))
        for name, shares in asyncio.run(real(workload, chosen, folder / str(seed), clock)).items():
            theirs[name].append(shares)
            _say(_line(f"{name}, seed {seed}", shares, Shares.mean(ours[name][-1])))
    return [_row(arm.name, theirs[arm.name], ours[arm.name]) for arm in chosen]


def _row(arm: str, theirs: Sequence[Shares], ours: Sequence[Sequence[Shares]]) -> Row:
    means = [Shares.mean(runs) for runs in ours]
    off = [run.apart(mean) for runs, mean in zip(ours, means, strict=True) for run in runs]
    return Row(arm, Shares.mean(theirs), Shares.mean(means), median(off), StandardErrors.of(ours))


def table(rows: Sequence[Row]) -> str:
    heads = f"{'':30}{'real':>24}{'simulated':>26}\n{'':30}" + f"{'local   pool computed':>24}" * 2 + "   apart     +-"
    return "\n".join(
        [heads, *(f"{_line(row.arm, row.real, row.simulated)}  {row.apart:6.1%} {row.spread:6.1%}" for row in rows)]
    )


def _line(name: str, *sides: Shares) -> str:
    return f"{name:30}" + "  ".join(f"{s.local:8.1%} {s.pool:6.1%} {s.computed:7.1%}" for s in sides)


def _shares(outcome: SimulationOutcome) -> Shares:
    asked = sum(outcome.prompt_tokens)
    return Shares(sum(outcome.local_tokens) / asked, sum(outcome.pool_tokens) / asked)


def _settings() -> Config:
    settings = read_config(ROOT / "configs" / "stack-cpu.yaml")
    assert settings.stack is not None
    small = {"kv_cache_bytes": KV_BYTES, "pool_bytes": POOL_BYTES, "max_model_len": CONTEXT_TOKENS}
    return settings.model_copy(update={"stack": settings.stack.model_copy(update=small)})


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    read.add_argument("folder", nargs="?", type=Path, help="for logs; else a temporary one")
    read.add_argument("--reduced", action="store_true")
    read.add_argument("--seeds", type=int, default=3)
    given = read.parse_args()
    folder = given.folder or Path(mkdtemp(prefix="agreement-"))
    print(table(compared(REDUCED if given.reduced else FULL, range(1, given.seeds + 1), folder)))


if __name__ == "__main__":
    main()
