"""The `warmroute` command, run in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from router.cli import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs the command in this process, as the entry point does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._folder = folder

    def __call__(self, *words: str | Path) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["warmroute", *map(str, words)])
        code = 0
        try:
            main.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *self._capsys.readouterr())

    def file(self, text: str, name: str = "main.yaml") -> Path:
        file = self._folder / name
        file.write_text(text)
        return file


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return Shell(monkeypatch, capsys, tmp_path)
