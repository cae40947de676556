"""The simulator's hits are the real stack's: agents of the codex kind on both, at reduced size (`tests/agreement`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agreement.stack import REDUCED, compared, table

pytestmark = pytest.mark.stack

REDUCED_BAR = 0.10
"""31 turns only: one that is computed anew instead of being found makes 3 points."""


def test_hits_come_from_where_the_simulator_says(tmp_path: Path) -> None:
    rows = compared(REDUCED, [1], tmp_path)
    assert [row.arm for row in rows] == ["round robin, no pool", "round robin + pool", "cache-aware + pool"]
    assert all(row.apart <= REDUCED_BAR for row in rows), table(rows)
