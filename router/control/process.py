"""The process as a whole: its build, open files, memory, threads sharing the interpreter, notices to the service
manager.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import socket
import sys
from importlib.metadata import version

from router.control.allocator import keep_freed_memory
from scorers.build import is_compiled

log = logging.getLogger("warmroute.app")

SWITCH_INTERVAL_S = 0.001


def describe_build() -> str:
    """Return the name and version of this program, and whether its modules are compiled."""
    return f"warmroute {version('warmroute')} ({'compiled' if is_compiled() else 'pure Python'})"


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard one: a rank takes a descriptor, a stream two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_interpreter() -> None:
    """Make the garbage collector run rarely, freed memory stay, and threads release the interpreter often.

    Thousands of records and millions of index entries live long and form no cycles. Scanning them after every 700
    allocations, CPython's default, took a quarter of the CPU time of a small request. By default, a thread that
    reads a large body makes the event loop wait 5 ms for each callback: small requests beside it took 140 ms.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def notify_service_manager(state: str) -> None:
    """Send `state` (READY=1, STOPPING=1) to the service manager if it expects notifications (systemd,
    `Type=notify`): sd_notify(3).
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.sendall(state.encode())
    except OSError as error:
        log.warning("could not notify the service manager of %s: %s", state, error)
