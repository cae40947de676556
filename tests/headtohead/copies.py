"""Compare our copies of other routers' rules with the originals, on the same requests and in the same state.

    python -m tests.headtohead.copies [--load NAME ...] [--router NAME ...] [--seed 1]

The original places every request of a match in virtual time (`simulated.py`), and the copy is examined at each: might
it have chosen so, too? Then the copy serves the same load by itself. Fails below 95 % of the choices.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table

from router.config.schema import PolicyConfig
from router.errors import WarmrouteError
from router.lab.simulator.outcome import SimulationFigures
from router.scheduling.policy.policy import build_policy
from tests.agreement.served import policy
from tests.headtohead.contenders import CONTENDERS, Contender
from tests.headtohead.loads import SIMULATED, Load
from tests.headtohead.simulated import serve, serve_alone
from tests.suites.rows import wide_console

BAR = 0.95
LONGEST_SENT = policy("sglang_threshold")
COPIES: Mapping[str, PolicyConfig] = {
    "vllm-router `cache_aware`": LONGEST_SENT,
    "sglang-router `cache_aware`": LONGEST_SENT,
    "smg `cache_aware`": LONGEST_SENT,
    "vllm-router `kv_aware`": policy("vllm_router_kv_aware"),
    "Dynamo `select_service`": policy("dynamo_cost"),
    "nginx `least_conn`": policy("least_requests"),
}  # round robin begins elsewhere, and rules with a chance or a hash in them choose otherwise each time


class Compared(NamedTuple):
    """`same`: the share of the choices that the copy might have made; the figures are of what each served by itself."""

    router: str
    load: str
    choices: int
    same: float
    original: SimulationFigures
    copy: SimulationFigures


def compare(original: Contender, copy: PolicyConfig, load: Load, seed: int) -> Compared:
    """Let the original and its copy serve the load. Raises WarmrouteError if the original cannot be run."""
    workload = load.make(seed)
    figures, agreed = serve(original, load, workload, seed, build_policy("copy", copy))
    alone = serve_alone(copy, load, workload, seed, events=original.reads_events)
    return Compared(original.name, load.name, agreed.choices, agreed.same / agreed.choices, figures, alone)


def table(rows: Sequence[Compared]) -> Table:
    shown = Table(box=box.SIMPLE)
    for name in ("router", "load"):
        shown.add_column(name, no_wrap=True)
    for name in ("choices", "same", "hits", "of the copy", "TTFT p90, s", "of the copy"):
        shown.add_column(name, justify="right")
    for row in rows:
        figures = [f"{one.local_share or 0:.1%}" for one in (row.original, row.copy)]
        figures += [f"{one.ttft_p90_s or 0:.2f}" for one in (row.original, row.copy)]
        shown.add_row(row.router, row.load, f"{row.choices:,}", f"{row.same:.1%}", *figures)
    return shown


def main() -> int:
    chosen = _arguments()
    console, rows, left_out = wide_console(highlight=False), [], False
    for contender in (one for one in CONTENDERS if one.name in (chosen.router or COPIES)):
        for load in (one for one in SIMULATED if chosen.load is None or one.name in chosen.load):
            console.print(f"{contender.name}, {load.name} ...")
            try:
                rows.append(compare(contender, COPIES[contender.name], load, chosen.seed))
            except WarmrouteError as why:
                left_out = True
                console.print(f"{contender.name} is left out: {why}", markup=False)
                break
    console.print(table(rows))
    return int(left_out or any(row.same < BAR for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.headtohead.copies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--load", action="append", choices=[load.name for load in SIMULATED], metavar="LOAD")
    parser.add_argument("--router", action="append", choices=list(COPIES), metavar="ROUTER")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
