"""The simulator's hits are the real stack's: agents of the codex kind, cache-aware over a pool, at reduced size.

`python -m tests.agreement.stack` compares the other arms, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agreement.stack import POLICY, REDUCED, compared, table
from tests.bench.real_stack.agents import default_arms

pytestmark = [pytest.mark.stack, pytest.mark.long]

REDUCED_BAR = 0.10
"""31 turns only: one that is computed anew instead of being found makes 3 points."""


def test_hits_come_from_where_the_simulator_says(tmp_path: Path) -> None:
    *_, aware = default_arms(POLICY)
    (row,) = compared(REDUCED, [1], tmp_path, [aware])
    assert row.arm == "cache-aware + pool"
    assert row.apart <= REDUCED_BAR, table([row])
