"""Guard that kills the stack's processes once the process that started them has ended, for whatever reason.

The guard is a process of its own (standard library only) that reads a pipe: `+PID` for each process group to guard,
`-PID` for one that has ended. Each child writes its own `+`, before it executes its program, and keeps the pipe
open until then. So when the pipe closes, the parent is dead or has finished, and the guard has read the `+` of
every child: it kills the remaining groups. prctl(2)'s death signal would not suffice: it reaches a server, but not
the server's workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO

ANNOUNCE = 'echo "+$$" >&0; exec "$@" </dev/null'


class ProcessGuard:
    """The parent's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True)

    def start(self, command: Sequence[str], environment: dict[str, str], out: IO[bytes]) -> subprocess.Popen[bytes]:
        """Run the command in its own process group, whose id is the PID. The group is guarded from the start."""
        return subprocess.Popen(
            ["/bin/sh", "-c", ANNOUNCE, "sh", *command],
            stdin=self._process.stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent, which then ends its children
        )

    def forget(self, group: int) -> None:
        """Stop guarding a group that has ended: the system may give its number to another process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the guard was killed; the parent still ends its processes
            self._process.stdin.write(b"-%d\n" % group)
            self._process.stdin.flush()

    def close(self) -> None:
        """Close the pipe, and wait until the guard has killed the remaining groups."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def read_groups(lines: Iterable[str]) -> set[int]:
    """Return the groups still guarded at the end of the pipe."""
    groups: set[int] = set()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    return groups


if __name__ == "__main__":
    for group in read_groups(sys.stdin):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
