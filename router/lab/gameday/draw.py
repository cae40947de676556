"""The faults that a game day's seed draws.

All kinds that the fleet can have come in an order of their own, then in another one, until the day's end, so that a
short day has each kind as well.
"""

from __future__ import annotations

from itertools import count
from typing import Any, get_args

from router.config.sections.gameday import TRAITS, FaultKind, GamedayDraw, GamedayFault, GamedayFile
from router.lab.rng import Rng

DRAW_SEED = 7_919  # apart from the seeds of engines and clients
POLICY = "consistent_hash"  # all sessions share a first block: it sends them to one engine
JUMPS_S = (3600.0, -3600.0)
FLOOD_CLIENTS, FLOOD_TOKENS = 16, 2000


def draw_faults(day: GamedayFile) -> GamedayFile:
    """Return the day with the faults that its seed draws in place of `draw`; a day without `draw` as it is. The
    result is a day like one that was written by hand, which plays the same faults again.
    """
    if day.draw is None:
        return day
    drawing, deck, faults = _Drawing(day, day.draw), list[FaultKind](), []
    for number in count():
        at_s = day.draw.from_s + number * day.draw.every_s
        if at_s + day.draw.every_s > day.ends_s:
            break
        deck = deck or drawing.shuffle()
        faults.append(drawing.draw(deck.pop(), at_s))
    return day.model_copy(update={"draw": None, "faults": faults})


class _Drawing:
    def __init__(self, day: GamedayFile, rules: GamedayDraw) -> None:
        self._day = day
        self._rules = rules
        self._rng = Rng(day.seed * DRAW_SEED)

    def shuffle(self) -> list[FaultKind]:
        """Return all kinds that the fleet can have, in an order of their own."""
        kinds = [kind for kind in get_args(FaultKind) if self._can_have(kind)]
        for last in range(len(kinds) - 1, 0, -1):
            other = self._rng.below(last + 1)
            kinds[last], kinds[other] = kinds[other], kinds[last]
        return kinds

    def draw(self, kind: FaultKind, at_s: float) -> GamedayFault:
        """Return a fault of this kind."""
        fields: dict[str, Any] = {"fault": kind, "at_s": at_s, "must": self._rules.must}
        if TRAITS[kind].lasts:
            fields["until_s"] = at_s + self._rules.lasts_s * (1 + self._rng.below(100) / 100) / 2
        fields |= {name: self._value(name) for name in TRAITS[kind].parameters}
        return GamedayFault(**fields)

    def _can_have(self, kind: FaultKind) -> bool:
        fleet = self._day.fleet
        needs = {"dead_pool": fleet.pool, "kill_router": fleet.routers > 1}
        return needs.get(kind, kind != "kill_worker" or (fleet.routers > 1 and self._day.workers > 1))

    def _value(self, parameter: str) -> object:
        fleet, below = self._day.fleet, self._rng.below
        match parameter:
            case "engine":
                return below(fleet.engines)
            case "router":
                return 1 + below(fleet.routers - 1)
            case "worker":
                return below(self._day.workers)
            case "factor":
                return 2.0 + below(10)
            case "share":
                return (1 + below(5)) / 10
            case "how":
                return ("stall", "refuse")[below(2)]
            case "jump_s":
                return JUMPS_S[below(2)]
            case "of":
                return "engines" if self._day.workers > 1 else ("router", "engines")[below(2)]
        return {"policy": POLICY, "clients": FLOOD_CLIENTS, "tokens": FLOOD_TOKENS}[parameter]
