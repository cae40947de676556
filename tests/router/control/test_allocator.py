"""What the C library does with freed memory, in a process of its own, since its settings are a process's."""

from __future__ import annotations

import subprocess
import sys

FAULTS = """
import resource
from router.control.allocator import keep_freed_memory

def faults(rounds=100):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        copies = [bytearray(320_000) for _ in range(8)]
        del copies
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / rounds

first = faults()
print(keep_freed_memory(), first, faults())
"""


def test_the_pages_of_a_large_request_are_there_for_the_next_one() -> None:
    """Eight copies of 320 KB are 625 pages."""
    ran = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, before, after = ran.stdout.split()
    assert (kept, float(before) > 300, float(after) < 30) == ("True", True, True), ran.stdout
