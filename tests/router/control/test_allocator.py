"""Freed memory: what the C library keeps, in a process of its own with these settings, and when it is given back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from router.control.allocator import is_due

MB = 1024 * 1024
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


@pytest.mark.parametrize(
    ("grown", "cpu_share", "kept_s", "due"),
    [
        (65 * MB, 0.9, 10, True),
        (63 * MB, 0.9, 290, False),
        (3 * MB, 0.9, 300, True),
        (3 * MB, 0.05, 10, True),
        (1 * MB, 0.05, 600, False),
    ],
    ids=["a spike", "busy", "busy, after five minutes", "idle", "nothing to give"],
)
def test_when_freed_memory_is_given_back(grown: int, cpu_share: float, kept_s: float, due: bool) -> None:
    assert is_due(grown, cpu_share, kept_s) is due


def test_the_pages_of_a_large_request_are_there_for_the_next_one() -> None:
    """Eight copies of 320 KB are 625 pages."""
    ran = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, before, after = ran.stdout.split()
    assert (kept, float(before) > 300, float(after) < 30) == ("True", True, True), ran.stdout
