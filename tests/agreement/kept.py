"""What each row came to, one JSON file per row from the moment it is measured, so that a broken-off run goes on.

A row counts as measured when its file is of the same size (reduced or full) and of the same code.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.agreement.measured import ROOT, code_digest
from tests.agreement.row import Line

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


def keep(found: Found, folder: Path) -> None:
    """Writes it, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{found.row}.json"
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    unfinished.replace(file)


def kept(row: str, reduced: bool, folder: Path) -> Found | None:
    """None: it is not measured yet, or was left out."""
    try:
        found = msgspec.json.decode((folder / f"{row}.json").read_bytes(), type=Found)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return found if found.reduced == reduced and found.code == code_digest() and found.left_out is None else None
