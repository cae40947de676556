"""The machine that is measured on: its name, and how busy other processes keep it just before a row begins.

Latency means little when others use the cores; CPU time suffers less. So each row's outcome records it.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

LOOK_S = 0.5


def others_cores(look_s: float = LOOK_S) -> float:
    """Return the CPU time that all processes together use now, in cores, over a short interval."""
    began, before = time.monotonic(), _busy_ticks(Path("/proc/stat").read_text())
    time.sleep(look_s)
    spent = _busy_ticks(Path("/proc/stat").read_text()) - before
    return round(spent / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began), 2)


def _busy_ticks(stat: str) -> int:
    """Sum of user, nice, system, irq, softirq and steal in the first line: all but idle and iowait (proc(5))."""
    user, nice, system, _, _, irq, softirq, steal = map(int, stat.split(maxsplit=9)[1:9])
    return user + nice + system + irq + softirq + steal


def name() -> str:
    """Name of the processor, cores that may be used, Python."""
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in info if line.startswith("model name"))
    except (FileNotFoundError, StopIteration):
        processor = platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0))
    return f"{processor}, {cores} cores, Python {platform.python_version()}"
