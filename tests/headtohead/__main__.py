"""Compare Warmroute with the routers that it competes with: the real ones, in front of the same engines.

    python -m tests.headtohead [--load NAME ...] [--router NAME ...] [--seeds 8] [--first-seed 1] [--short]
    python -m tests.headtohead --virtual [...]
    python -m tests.headtohead --real [...]
    python -m tests.headtohead --publish

The first is with emulated engines in real time, the second with simulated ones in virtual time (`simulated.py`), the
third with real ones (`real_engines.py`). Each match is kept as JSON in `build/headtohead`, and is not played again; a
page of those that were asked for is written there, too. The last plays nothing: it writes all kept matches to
`docs/measurements/routers.json`, the source of "Which router?", and draws its chart.
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
RECORDS, CHART = Path("docs/measurements/routers.json"), Path("docs/img/routers.png")
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

    def match_name(self, contender: Contender, load: Load, seed: object) -> str:
        return self.file_name(contender, load.name.replace("/", " per "), seed)


LIVE = Kind("live", LOADS, LONG_S + BESIDE_S, match.play)
VIRTUAL = Kind("virtual", SIMULATED, simulated.TAKES_S, simulated.play)
REAL = Kind("real", AT_REAL, LONG_S + BESIDE_S + real_engines.START_S, real_engines.play)
KINDS = (LIVE, VIRTUAL, REAL)


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
        return self.kind.match_name(self.contender, self.load, self.seed)


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


def publish() -> None:
    """Write the records and the chart of "Which router?" from all kept matches."""
    names = [
        file.stem
        for kind in KINDS
        for load in kind.loads
        for contender in CONTENDERS
        for file in FOLDER.glob(f"{kind.match_name(contender, load, '[0-9]*')}.json")
    ]
    matches = [match for name in names if (match := find_earlier(name, Match)) is not None]
    RECORDS.write_bytes(encode_matches(matches))
    draw(SIMULATED, matches, CHART)


def main() -> int:
    chosen = _arguments()
    if chosen.publish:
        publish()
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the routers would outlive this process
    kind: Kind = chosen.kind
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
    draw(loads, matches, FOLDER / f"{kind.name}.png")
    console.print(page, markup=False, highlight=False)
    return 0 if len(matches) == len(plan) else 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.headtohead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", action="append", metavar="LOAD")
    parser.add_argument("--router", action="append", choices=[one.name for one in CONTENDERS], metavar="ROUTER")
    parser.add_argument("--seeds", type=int, default=8, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.set_defaults(kind=LIVE)
    engines = parser.add_mutually_exclusive_group()
    for kind, about in ((VIRTUAL, "simulated engines, in virtual time"), (REAL, "real engines, on CPUs")):
        engines.add_argument(f"--{kind.name}", dest="kind", action="store_const", const=kind, help=about)
    engines.add_argument("--short", action="store_true", help=f"one seed of {'; '.join(SHORT)}: 45 minutes")
    engines.add_argument("--publish", action="store_true", help=f"write {RECORDS} and {CHART} from all kept matches")
    chosen = parser.parse_args()
    known = [load.name for load in chosen.kind.loads]
    if unknown := set(chosen.load or ()).difference(known):
        parser.error(f"{chosen.kind.name} matches have no load {min(unknown)!r}: they have {'; '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
