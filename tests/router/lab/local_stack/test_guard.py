"""The guard: nothing outlives a parent that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from router.lab.local_stack.guard import ProcessGuard, read_groups

PARENT = """
import os, sys
from router.lab.local_stack.guard import ProcessGuard
guard = ProcessGuard()
children = [guard.start(["sleep", "60"], dict(os.environ), sys.stderr.buffer) for _ in range(2)]
children[1].kill()
children[1].wait()
guard.forget(children[1].pid)
print(children[0].pid, flush=True)
sys.stdin.read()
"""


def test_what_is_left_at_the_end() -> None:
    assert read_groups(["+5\n", "+6\n", "-5\n", "+7\n", "-7\n", "+7\n"]) == {6, 7}


def test_children_of_a_killed_parent_are_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)  # it is there
        watch = subprocess.Popen(["tail", "--pid", str(child), "-f", "/dev/null"])  # ends when the child has
        parent.send_signal(signal.SIGKILL)
        assert watch.wait(10) == 0


def test_closing_kills_nobody_who_was_forgotten(tmp_path: Path) -> None:
    guard = ProcessGuard()
    with (tmp_path / "log").open("wb") as out, guard.start(["cat", "/proc/self/stat"], {}, out) as short:
        pass
    guard.forget(short.pid)
    guard.close()
    stat = (tmp_path / "log").read_text().split()
    assert [stat[0], stat[4]] == [str(short.pid)] * 2  # the program is what was started, and leads its own group
