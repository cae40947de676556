"""`warmroute fleet` in a process of its own, of this code or of a copy."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from docs.tools.pages import ROOT

START_S = 60.0


@contextmanager
def embedded_fleet(config: dict[str, Any], folder: Path, code: Path = ROOT) -> Iterator[Path]:
    """A router with `config` and its emulated engines, ready; yields its log. `code`: the folder with `router`."""
    (folder / "fleet.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    text = folder / "fleet.log"
    with text.open("w") as log:
        command = [sys.executable, "-m", "router", "fleet", "--config", str(folder / "fleet.yaml")]
        process = subprocess.Popen(command, cwd=code, stdout=log, stderr=log)
        try:
            until = time.monotonic() + START_S
            while "Ready." not in text.read_text():
                assert process.poll() is None, text.read_text()
                assert time.monotonic() < until, "the fleet does not start"
                time.sleep(0.1)
            yield text
        finally:
            process.terminate()
            process.wait(30)
