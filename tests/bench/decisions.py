"""Cost of one decision and of one shadow evaluation at 64 targets, for every policy of `configs/policies`.

    python -m tests.bench.decisions [--repetitions 7]

In one process, best of several repetitions of the same view: the cost of the work, without what a busy machine adds. A
shadow costs one decision, its session memory, and two rows priced where it disagrees; in this view every policy
disagrees that can. The bar is 60 us for a shadow.
"""

from __future__ import annotations

import argparse
import random
import timeit
from pathlib import Path
from typing import NamedTuple

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from router.config import schema
from router.scheduling.experiments.shadow import Shadow
from router.scheduling.policy.policy import Policy, build_policy
from scorers.contract import Ask, Decode, Load, Overlap, Row, Speed, Transfer, View
from scorers.registry import load_registry
from tests.bench import placing

FOLDER = Path(__file__).parents[2] / "configs" / "policies"
TARGETS = 64
BAR_US = 60.0
ROUNDS = 200


class Cost(NamedTuple):
    policy: str
    decision_us: float
    shadow_us: float


def a_view(dice: random.Random) -> View:
    """Return a busy fleet without slower tiers: a 1,200-token prompt, of which every target holds a random part."""
    rows = tuple(_row(i, dice) for i in range(TARGETS))
    return View(
        number=7, seed=1, model="m", adapter=None, prompt_tokens=1200, prefix=123, session="a1b2", last_target="e-3/0",
        pool=None, busy=0.4, rows=rows, turn=3, now_s=5.0, nominal=rows[0].speed, prefixes=(1, 2, 4, 8), ask=Ask(),
    )  # fmt: skip


def _row(number: int, dice: random.Random) -> Row:
    held = 16 * dice.randrange(75)
    link = Transfer(5.0, 10.0, 3, 0.2)
    speed = Speed(
        10.0, 100.0 + number % 7, 2.0, 12, 0.5, link, link, link, link, link, Decode(10.0, 50.0, 60.0, 9, 0.2)
    )
    load = Load(
        requests=dice.randrange(9), prefilling=1, prefill_tokens=500, context_tokens=20_000,
        queued_ms=round(dice.random() * 100, 3), running=3, waiting=dice.randrange(3), kv_usage=0.4, elsewhere=1,
        metrics_age_s=0.2, adapters=frozenset(), max_adapters=8, waiting_adapters=frozenset(), prompt_tokens=20_000,
        output_tokens_per_s=100.0,
    )  # fmt: skip
    overlap = Overlap(held, held, held, held, "events", 0.1)
    return Row(f"e-{number}/0", f"e-{number}", 0, 16, 300_000, overlap, load, speed, 100_000 + number)


def measure(repetitions: int) -> list[Cost]:
    view, registry = a_view(random.Random(1)), load_registry()
    others = [_cost(_built(file, registry), view, repetitions) for file in sorted(FOLDER.glob("*.yaml"))]
    return sorted(others, key=lambda cost: cost.shadow_us)


def _built(file: Path, registry: object) -> Policy:
    spec = schema.PolicyConfig.model_validate(yaml.safe_load(file.read_text()))
    return build_policy(file.stem, spec, registry)  # type: ignore[arg-type]


def _cost(policy: Policy, view: View, repetitions: int) -> Cost:
    shadow = Shadow(policy)
    made = policy.decide(view)
    elsewhere = made._replace(chosen=(made.chosen + 1) % len(made.rows))  # so that the difference must be priced
    return Cost(
        policy.name,
        _best_us(lambda: policy.decide(view), repetitions),
        _best_us(lambda: shadow.evaluate(elsewhere), repetitions),
    )


def _best_us(work: object, repetitions: int) -> float:
    return min(timeit.repeat(work, number=ROUNDS, repeat=repetitions)) / ROUNDS * 1e6  # type: ignore[arg-type]


def table(costs: list[Cost]) -> Table:
    shown = Table(title=f"one decision at {TARGETS} targets, microseconds", box=box.SIMPLE)
    shown.add_column("policy", no_wrap=True)
    for name in ("decides", "as a shadow", f"bar {BAR_US:.0f}"):
        shown.add_column(name, justify="right")
    for cost in costs:
        verdict = "met" if cost.shadow_us <= BAR_US else "[red]missed[/]"
        shown.add_row(cost.policy, f"{cost.decision_us:.0f}", f"{cost.shadow_us:.0f}", verdict)
    return shown


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repetitions", type=int, default=7)
    repetitions, console = arguments.parse_args().repetitions, Console(highlight=False)
    console.print(table(measure(repetitions)))
    console.print(placing.table(placing.measure(min(3, repetitions))))


if __name__ == "__main__":
    main()
