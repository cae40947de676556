"""One check of the doctor: its name, what it asserts, the facts that it needs, and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from router.operate.doctor.finding import FleetFinding
from router.operate.doctor.subject import Subject


class Check(NamedTuple):
    """A check of the doctor. `run` is a pure function of the gathered facts."""

    name: str  # SUBJECT.THING
    asserts: str  # what is true of a healthy fleet
    needs: str  # facts: "configuration", "engines", "prompts" (only without --passive), "router"; or "anything"
    run: Callable[[Subject], Iterable[FleetFinding]]
