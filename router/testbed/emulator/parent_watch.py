"""A child that does not outlive its parent, however that one ends.

Linux tells a process when its parent dies (prctl(2), PR_SET_PDEATHSIG). Elsewhere this does nothing, and a parent that
is killed outright leaves its engines behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the parent dies. Raises SystemExit if it is gone already."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("warmroute engine: the parent process is gone")
