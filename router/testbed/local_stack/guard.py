"""Ends the stack's processes when the one that started them is gone, however it went.

The guard is a process of its own (standard library only) that reads a pipe: `+PID` for each process group to guard,
`-PID` for one that has ended. A child says `+` itself, before it becomes the program that it is to be, and holds the
pipe open until then. So when it closes, the parent is dead or has finished, and every child is known: what is left
is killed. prctl(2)'s death signal would not do: it reaches a server, but not the workers that the server has started.
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
    """Our end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True)

    def start(self, command: Sequence[str], environment: dict[str, str], out: IO[bytes]) -> subprocess.Popen[bytes]:
        """The command in a group of its own, which bears its PID, known to the guard from its first moment on."""
        return subprocess.Popen(
            ["/bin/sh", "-c", ANNOUNCE, "sh", *command],
            stdin=self._process.stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent, which then ends its children
        )

    def forget(self, group: int) -> None:
        """It has ended, and its number may become somebody else's."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody has killed the guard: we still end what we started
            self._process.stdin.write(b"-%d\n" % group)
            self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def read_groups(lines: Iterable[str]) -> set[int]:
    """The groups that are left at the end."""
    groups: set[int] = set()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    return groups


if __name__ == "__main__":
    for group in read_groups(sys.stdin):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
