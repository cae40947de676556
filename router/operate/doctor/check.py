"""One check: its name, what it makes sure of, and the function that looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from router.operate.doctor.finding import FleetFinding
from router.operate.doctor.subject import Subject


class Check(NamedTuple):
    """A check of the doctor. It is a pure function of what was gathered."""

    name: str  # SUBJECT.THING
    asserts: str  # what is true of a healthy fleet
    needs: str  # what it looks at: "configuration", "engines", "prompts" (only without --passive), "router"
    run: Callable[[Subject], Iterable[FleetFinding]]
