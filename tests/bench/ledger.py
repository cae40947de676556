"""Cost of the decision log: bytes per record, microseconds to enqueue, write and read one, by size of fleet.

    python -m tests.bench.ledger [--records 2000] [--json FILE]

Prompts are 80,000 tokens long, records those of `busy_fleet.py`. Bytes are those of the files that the decision log
writes. CPU time of this process alone: reading includes decompressing, and is what a replay pays before it decides.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from router.clock import SystemClock
from router.config import schema
from router.features.decision_log.codec import RecordEncoder
from router.features.decision_log.format import LoggedRecord, decode
from router.features.decision_log.reader import read
from router.features.decision_log.writer import DecisionLogWriter
from router.scheduling.policy.record import Record
from tests.bench.busy_fleet import BusyFleet

BAR_BYTES = {64: 4096}
WARM_UP = 1000  # records: until the engines' speeds are learned and their queues are what they will be


class Cost(NamedTuple):
    """Cost per record."""

    targets: int
    plain_bytes: float
    packed_bytes: float
    add_us: float
    encode_us: float
    decode_us: float
    read_us: float


def measured(targets: int, n: int) -> Cost:
    records = list(BusyFleet(targets).records(WARM_UP + n))[WARM_UP:]
    encoder = RecordEncoder(salt=7)
    encoder.start_file("run", "0", 0.0)
    lines = encoder.encode_record(records[0]) and [
        encoder.encode_record(record) for record in records
    ]  # the first one has its policy
    with tempfile.TemporaryDirectory(prefix="warmroute-decisions-") as folder:
        config = schema.DecisionLogConfig(folder=folder, queue=n)
        add_us = write_records(config, records)
        (packed,) = Path(folder).glob("*.gz")
        read_us = spent_us(lambda: [None for _ in read([packed])], n)
        assert sum(isinstance(entry, LoggedRecord) for entry in read([packed])) == n
        return Cost(
            targets,
            sum(map(len, lines)) / n,
            packed.stat().st_size / n,
            add_us,
            spent_us(lambda: [encoder.encode_record(record) and None for record in records], n),
            spent_us(lambda: [decode(line) and None for line in lines], n),
            read_us,
        )


def write_records(config: schema.DecisionLogConfig, records: Sequence[Record]) -> float:
    """Write and compress the records; return the cost of enqueuing, measured before the writer thread starts."""
    decision_log = DecisionLogWriter(config, 7, "run", SystemClock())
    began = time.perf_counter()
    for record in records:
        decision_log.add(record)
    add_us = (time.perf_counter() - began) / len(records) * 1e6
    decision_log.start()
    decision_log.close(within_s=60.0)
    assert decision_log.stats.written == len(records), decision_log.stats
    return add_us


def spent_us(work: Callable[[], object], n: int) -> float:
    """Return the least of three runs, per record."""

    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return min(once() for _ in range(3)) / n * 1e6


def table(costs: Sequence[Cost]) -> Table:
    shown = Table(title="the decision log, per record", box=box.SIMPLE)
    for column in ("targets", "bytes", "compressed", "bar", "add us", "encode us", "decode us", "read us"):
        shown.add_column(column, justify="right")
    for cost in costs:
        bar = BAR_BYTES.get(cost.targets)
        verdict = "" if bar is None else f"{bar} [green]met[/]" if cost.packed_bytes <= bar else f"{bar} [red]missed[/]"
        times = (cost.encode_us, cost.decode_us, cost.read_us)
        shown.add_row(
            f"{cost.targets}", f"{cost.plain_bytes:,.0f}", f"{cost.packed_bytes:,.0f}", verdict, f"{cost.add_us:.2f}",
            *(f"{us:.0f}" for us in times),
        )  # fmt: skip
    return shown


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.bench.ledger", description=__doc__)
    arguments.add_argument("--records", type=int, default=2000)
    arguments.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = arguments.parse_args()
    costs = []
    with Progress(transient=True) as progress:
        for targets in progress.track((8, 64), description="writing and reading"):
            costs.append(measured(targets, chosen.records))
    console = Console()
    (console if console.is_terminal else Console(width=100)).print(table(costs))
    if chosen.json:
        chosen.json.write_text(json.dumps([cost._asdict() for cost in costs], indent=1) + "\n")


if __name__ == "__main__":
    main()
