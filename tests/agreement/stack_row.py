"""The real CPU stack: coding agents scaled down, on vLLM over a Mooncake Store and in virtual time (`stack.py`).

Where prompt tokens come from, by arm, within `BAR` of each other. It is measured where the stack is installed; nothing
is fetched for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from router.errors import WarmrouteError
from router.testbed.local_stack.install import REQUIREMENTS, STAMP, venv_path
from tests.agreement.row import Line, Row
from tests.agreement.stack import BAR, FULL, Shares, compared

SEEDS = (1, 2, 3)
POINTS = 100 * BAR
WHY = "the real engines keep a little less of their own, and fetch it from the pool: see tests/agreement/stack.py"


class NoStack(WarmrouteError):
    """The real stack is not installed here; the message says how it is."""


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    """Reduced: one seed. Raises NoStack."""
    installed()
    say("real engines")
    with TemporaryDirectory(prefix="warmroute-agreement-") as folder:
        rows = compared(FULL, SEEDS[:1] if reduced else SEEDS, Path(folder))
    return [line for row in rows for line in of_arm(row.arm, row.real, row.simulated)]


def of_arm(arm: str, real: Shares, simulated: Shares) -> list[Line]:
    shares = (("own cache", real.local, simulated.local), ("pool", real.pool, simulated.pool),
              ("computed", real.computed, simulated.computed))  # fmt: skip
    return [
        Line(f"{arm}: {source}", f"{100 * there:.1f}", 100 * here, 100 * there - POINTS, 100 * there + POINTS, WHY, "%")
        for source, there, here in shares
    ]


def installed() -> None:
    """Raises NoStack."""
    if not (venv_path("stack", REQUIREMENTS) / STAMP).exists():
        raise NoStack("no real stack is installed here: `python -m router.testbed.local_stack.install` does it")


ROWS = (Row("stack", "the real CPU stack: codex scaled down, shares of prompt tokens by source", measure, 900, 300),)
