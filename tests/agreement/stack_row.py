"""The real CPU stack: coding agents scaled down, on vLLM over a Mooncake Store and in virtual time (`stack.py`).

Where prompt tokens come from, by arm, within `BAR` of each other or two standard errors of the real mean, whichever is
more: single runs of the cache-aware arm differ by more than `BAR`. It is measured where the stack is installed; nothing
is fetched for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from router.errors import WarmrouteError
from router.lab.local_stack.install import REQUIREMENTS, STAMP, venv_path
from tests.agreement.row import Line, Row
from tests.agreement.stack import BAR, FULL, compared
from tests.agreement.stack import Row as ArmRow

SEEDS = (1, 2, 3)
WHY = "sessions went elsewhere more or less often; the caches keep the same: see tests/agreement/stack.py"


class NoStack(WarmrouteError):
    """The real stack is not installed here; the message says how it is."""


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    """Reduced: one seed. Raises NoStack."""
    installed()
    say("real engines")
    with TemporaryDirectory(prefix="warmroute-agreement-") as folder:
        rows = compared(FULL, SEEDS[:1] if reduced else SEEDS, Path(folder))
    return [line for row in rows for line in of_arm(row)]


def of_arm(row: ArmRow) -> list[Line]:
    """Return a line for each source of prompt tokens."""
    real, simulated, errors = row.real, row.simulated, row.errors
    lines = []
    for source, there, here, error in (
        ("own cache", real.local, simulated.local, errors.local),
        ("pool", real.pool, simulated.pool, errors.pool),
        ("computed", real.computed, simulated.computed, errors.computed),
    ):
        off = max(BAR, 2 * error)
        low, high = 100 * (there - off), 100 * (there + off)
        lines.append(Line(f"{row.arm}: {source}", f"{100 * there:.1f}", 100 * here, low, high, WHY, "%"))
    return lines


def installed() -> None:
    """Raises NoStack."""
    if not (venv_path("stack", REQUIREMENTS) / STAMP).exists():
        raise NoStack("no real stack is installed here: `python -m router.lab.local_stack.install` does it")


ROWS = (Row("stack", "the real CPU stack: codex scaled down, shares of prompt tokens by source", measure, 900, 300),)
