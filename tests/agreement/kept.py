"""What each row came to, one JSON file per row from the moment it is measured, so that a broken-off run goes on.

A row counts as measured when its file is of the same size (reduced or full) and of the same code.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.agreement.measured import ROOT, code_digest
from tests.agreement.row import Line
from tests.suites import rows

FOLDER = ROOT / "build" / "agreement" / "rows"


class Found(msgspec.Struct, frozen=True):
    """`left_out`: why it could not be measured."""

    row: str
    title: str
    reduced: bool
    code: str
    took_s: float
    lines: list[Line] = []
    left_out: str | None = None


def kept(row: str, reduced: bool, folder: Path) -> Found | None:
    """None: it is not measured yet, or was left out."""
    found = rows.kept(folder / f"{row}.json", Found)
    if found is None or found.left_out is not None:
        return None
    return found if (found.reduced, found.code) == (reduced, code_digest()) else None
