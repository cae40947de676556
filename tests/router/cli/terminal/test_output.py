"""What commands share that show what they found."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from router.cli.terminal.output import NARROWEST, format_now, readable_console, versions, write_json
from router.clock import ManualClock
from router.errors import WarmrouteError


def test_figures_are_written_and_the_file_is_named_as_it_is(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=20)
    write_json(console, tmp_path / "deep" / "[bold]a.json", {"b": [1], "a": None})
    assert (tmp_path / "deep" / "[bold]a.json").read_text() == '{\n "b": [\n  1\n ],\n "a": null\n}\n'
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == f"written: {tmp_path / 'deep' / '[bold]a.json'}\n"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WarmrouteError, match=rf"^{re.escape(str(tmp_path))}/file/a\.json: "):
        write_json(Console(file=io.StringIO()), tmp_path / "file" / "a.json", {})


def test_tables_have_room_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert readable_console().width == NARROWEST


def test_when_and_by_what_is_said_for_people() -> None:
    assert format_now(ManualClock(0.0, wall=1_700_000_000.0)) == "2023-11-14 22:13 UTC"
    assert re.fullmatch(r"warmroute \d+\.\d+\S*", versions())
