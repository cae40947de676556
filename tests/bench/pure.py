"""The pure build beside the compiled one: a row is measured once more, in a process in which nothing is compiled.

That process is told by its environment, and so are the routers that it starts. What it measures of the peers is used
for its own ratios only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scorers.build import PURE
from tests.bench.figures import Line
from tests.bench.results import Effort, Outcome
from tests.bench.row import NotMeasured
from tests.suites.rows import kept

ROOT = Path(__file__).parents[2]


def measure_pure(row: str, effort: Effort, folder: Path) -> list[Line]:
    """Return the lines of a row on the pure build. Raises NotMeasured with its reason."""
    file = folder / "pure.json"
    command = [sys.executable, "-m", "tests.bench", "--only", row, "--repetitions", str(effort.repetitions)]
    command += ["--quick"] if effort.quick else []
    environment = {**os.environ, PURE: "1"}
    ended = subprocess.run(
        [*command, "--outcome", str(file)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    outcome = kept(file, Outcome)
    if outcome is None or outcome.left_out is not None:
        raise NotMeasured(f"pure build: {ended.stderr if outcome is None else outcome.left_out}")
    return outcome.lines


def put_beside(lines: Sequence[Line], pure: Sequence[Line]) -> list[Line]:
    """Return the lines with the values of those of the same name on the pure build."""
    found = {line.what: line for line in pure}
    return [
        line
        if (other := found.get(line.what)) is None
        else msgspec.structs.replace(line, pure=other.ours, pure_ratios=other.ratios)
        for line in lines
    ]
