"""Compare Warmroute with the routers that it competes with: the real ones, in front of the same engines.

    python -m tests.headtohead [--load NAME ...] [--router NAME ...] [--seeds 8] [--first-seed 1] [--short]
    python -m tests.headtohead --virtual [...]
    python -m tests.headtohead --real [...]

The first is with emulated engines in real time, the second with simulated ones in virtual time (`simulated.py`), the
third with real ones (`real_engines.py`). Each match is kept as JSON in `build/headtohead`, and is not played again; the
page is written there, too, and all records as `live.json`, `virtual.json` or `real.json`, with a chart. The records of
the last two, in `docs/measurements/routers.json`, are the source of "Which router?".
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from router.clock import SystemClock
from router.errors import WarmrouteError
from tests.headtohead import match, real_engines, simulated
from tests.headtohead.chart import draw
from tests.headtohead.contenders import CONTENDERS, OURS, Contender
from tests.headtohead.control import Control, examine, examine_virtual
from tests.headtohead.loads import AT_REAL, LOADS, LONG_S, SHORT, SIMULATED, Load
from tests.headtohead.match import Match, MatchFigures, encode_matches
from tests.headtohead.page import render
from tests.suites.rows import in_turn, wide_console

FOLDER = Path("build/headtohead")
BESIDE_S = 10.0  # to start engines and router, and to end them
CONTROL_S = 20.0

T = TypeVar("T", Control, Match)


class Kind(NamedTuple):
    """A kind of matches. `takes_s`: one, about."""

    name: str
    loads: Sequence[Load]
    takes_s: float
    play: Callable[[Contender, Load, int], MatchFigures]

    def file_name(self, contender: Contender, *words: object) -> str:
        return contender.file_name(*([] if self is LIVE else [self.name]), *words)


LIVE = Kind("live", LOADS, LONG_S + BESIDE_S, match.play)
VIRTUAL = Kind("virtual", SIMULATED, simulated.TAKES_S, simulated.play)
REAL = Kind("real", AT_REAL, LONG_S + BESIDE_S + real_engines.START_S, real_engines.play)


class Examined(NamedTuple):
    """A control that is to be made."""

    contender: Contender
    kind: Kind

    @property
    def name(self) -> str:
        return self.kind.file_name(self.contender, "control")


class Planned(NamedTuple):
    """A match that is to be played."""

    load: Load
    seed: int
    contender: Contender
    kind: Kind

    @property
    def name(self) -> str:
        return self.kind.file_name(self.contender, self.load.name.replace("/", " per "), self.seed)


def make_control(examined: Examined, say: Callable[[str], None]) -> Control:
    say("positive control")
    if examined.kind is VIRTUAL:
        return examine_virtual(examined.contender)
    return asyncio.run(examine(examined.contender))


def play_planned(planned: Planned, say: Callable[[str], None]) -> Match:
    """Play a match. A router that cannot be installed or started is left out."""
    say("playing")
    clock, figures, left_out = SystemClock(), None, None
    began = clock.now()
    try:
        figures = planned.kind.play(planned.contender, planned.load, planned.seed)
    except (WarmrouteError, OSError) as why:
        left_out = f"{type(why).__name__}: {why}"
    ended = datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    took_s = round(clock.now() - began, 1)
    return Match(planned.contender.name, planned.load.name, planned.seed, ended, took_s, left_out, figures)


def find_earlier(name: str, kind: type[T]) -> T | None:
    """Return an earlier result. One that was left out is measured again."""
    file = FOLDER / f"{name}.json"
    found = msgspec.json.decode(file.read_bytes(), type=kind) if file.exists() else None
    return found if found is not None and found.left_out is None else None


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the routers would outlive this process
    kind = VIRTUAL if chosen.virtual else REAL if chosen.real else LIVE
    names = chosen.load or (SHORT if chosen.short else [load.name for load in kind.loads])
    loads = [load for load in kind.loads if load.name in names]
    contenders = [one for one in CONTENDERS if chosen.router is None or one.name in chosen.router]
    seeds = range(chosen.first_seed, chosen.first_seed + (1 if chosen.short else chosen.seeds))
    plan = [Planned(load, seed, contender, kind) for seed in seeds for load in loads for contender in contenders]
    console = wide_console()
    console.print(f"{len(plan)} matches, about {len(plan) * kind.takes_s / 60:.0f} minutes, kept in {FOLDER}")
    # in virtual time ours does not play as a process
    examined = [] if kind is REAL else [one for one in contenders if kind is LIVE or one.name != OURS]
    controls = in_turn(
        [Examined(one, kind) for one in examined],
        lambda _: CONTROL_S,
        lambda one: find_earlier(one.name, Control),
        make_control,
        FOLDER,
        console,
    )
    matches = in_turn(
        plan,
        lambda _: kind.takes_s,
        lambda one: find_earlier(one.name, Match),
        play_planned,
        FOLDER,
        console,
    )
    results: list[Control | Match] = [*controls, *matches]
    for one in results:
        if one.left_out is not None:
            console.print(f"{one.router} is left out: {one.left_out}", highlight=False)
    page = render(loads, matches, controls)
    (FOLDER / f"{kind.name}.md").write_text(page)
    (FOLDER / f"{kind.name}.json").write_bytes(encode_matches(matches))
    draw(loads, matches, FOLDER / f"{kind.name}.png")
    console.print(page, markup=False, highlight=False)
    return 0 if len(matches) == len(plan) else 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.headtohead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [load.name for kind in (LIVE, VIRTUAL, REAL) for load in kind.loads]
    parser.add_argument("--load", action="append", choices=names, metavar="LOAD")
    parser.add_argument("--router", action="append", choices=[one.name for one in CONTENDERS], metavar="ROUTER")
    parser.add_argument("--seeds", type=int, default=8, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    engines = parser.add_mutually_exclusive_group()
    engines.add_argument("--virtual", action="store_true", help="simulated engines, in virtual time")
    engines.add_argument("--real", action="store_true", help="real engines, on CPUs")
    engines.add_argument("--short", action="store_true", help=f"one seed of {', '.join(SHORT)}: half an hour")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
