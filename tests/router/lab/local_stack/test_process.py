"""The cause of an end in a log, in one line. Start and stop of processes: `test_supervisor.py`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from router.lab.local_stack.commands import Program
from router.lab.local_stack.guard import ProcessGuard
from router.lab.local_stack.process import StackProcess

GLOG = "E1121 07:46:28.802861 24987 master_client.cpp:35] Failed to connect to master"
HARMLESS = "E1121 07:46:28.802861 24987 transfer_metadata.cpp:1098] Local segment descriptor not found"
FATAL = "F1121 07:46:29.1 24987 master.cpp:1] cannot bind"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", "the log is empty"),
        ("starting\nended for no reason\n", "ended for no reason"),
        (f"{GLOG}\n(Worker pid=7) ERROR 11-21 ValueError: no room\nmore", "ValueError: no room"),
        (f"{GLOG}\n{FATAL}\nE1121 later", FATAL),
        (f"{GLOG}\nbye", GLOG),
        (f"{HARMLESS}\nstuck here", "stuck here"),
        ("(x pid=1) WARNING 11-21 it may be an OSError: too many\nRuntimeError: so it is", "RuntimeError: so it is"),
        ("RuntimeError: Engine core initialization failed. See above\nlast", "last"),
        ("KeyError: 'first'\nRuntimeError: that followed", "KeyError: 'first'"),
    ],
)
def test_the_cause(tmp_path: Path, log: str, cause: str) -> None:
    guard = ProcessGuard()
    with httpx.Client() as http:
        child = StackProcess(Program("x", ["true"], {}, "tcp://127.0.0.1:1"), tmp_path / "x.log", guard, http)
    child.log.write_text(log)
    assert child.last_error() == cause
    guard.close()
