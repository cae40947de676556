"""Settings of the whole process: its open files, its garbage collector, and how threads share the interpreter."""

from __future__ import annotations

import gc
import resource
import sys

SWITCH_INTERVAL_S = 0.001


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard one: a rank takes a descriptor, a stream two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_interpreter() -> None:
    """Make the garbage collector run rarely, and threads hand the interpreter over often.

    Thousands of records and millions of index entries live long and form no cycles. Scanning them after every 700
    allocations, CPython's default, took a quarter of the CPU time of a small request. A thread that reads a large body
    lets the event loop wait 5 ms by default, for each of its callbacks: small requests beside it took 140 ms.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
