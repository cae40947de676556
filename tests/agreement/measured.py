"""What one arm came to in one cell with one seed, kept line by line so that an interrupted grid goes on where it was.

A line counts again as long as what it came from is the same: the cell, the seed, the effort, the arm's policy with the
scorers that it names, and the rest of the code (`code`, which `--accept-old` lets pass).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from router.config.schema import PolicyConfig
from router.lab.simulator.outcome import SimulationFigures
from tests.agreement.regret import Score

ROOT = Path(__file__).parents[2]
FILE = ROOT / "build" / "agreement" / "grid.jsonl"
DECIDING = (
    "router/lab/simulator",
    "router/lab/workloads",
    "router/lab/engine_profile.py",
    "router/lab/rng.py",
    "router/scheduling",
    "router/features/admission",
    "router/fleet",
    "router/kvcache",
    "scorers/admission",
    "scorers/contract.py",
    "tests/agreement/ground.py",
    "tests/agreement/kinds.py",
    "tests/agreement/windows.py",
)


class Key(msgspec.Struct, frozen=True):
    cell: str
    arm: str
    policy: str  # digest of the policy and of the scorers that it names
    seed: int
    effort: str


class Measured(msgspec.Struct, frozen=True):
    """`failed`: the reason why there are no figures."""

    key: Key
    code: str  # digest of the sources that decide and simulate
    took_s: float  # CPU seconds
    figures: SimulationFigures | None = None
    preemptions: int = 0
    failed: str | None = None

    @property
    def score(self) -> Score | None:
        if self.figures is None:
            return None
        p90_s = self.figures.ttft_p90_s
        return Score(self.key.cell, self.key.arm, self.figures.requests_per_s, float("inf") if p90_s is None else p90_s)


def policy_digest(policy: PolicyConfig) -> str:
    plugins = [*policy.filters, *policy.scorers, *([policy.picker] if policy.picker else [])]
    sources = (ROOT / "scorers" / f"{plugin.name}.py" for plugin in plugins)
    return _digest([policy.model_dump_json().encode(), *(file.read_bytes() for file in sources if file.is_file())])


@cache
def code_digest() -> str:
    files: list[Path] = []
    for place in DECIDING:
        path = ROOT / place
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return _digest(file.read_bytes() for file in files)


def _digest(parts: Iterable[bytes]) -> str:
    made = hashlib.blake2b(digest_size=6)
    for part in parts:
        made.update(len(part).to_bytes(8) + part)
    return made.hexdigest()


def read(file: Path) -> Iterator[Measured]:
    """What is there, the newest of a key last; a line cut short by a crash is passed over, it is measured again."""
    if not file.exists():
        return
    for line in file.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=Measured)
        except msgspec.DecodeError:
            continue


def keep(measured: Measured, file: Path) -> None:
    """One write per line: several grids may add to one file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab", buffering=0) as out:
        out.write(msgspec.json.encode(measured) + b"\n")
