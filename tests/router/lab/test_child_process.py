"""Child processes that announce themselves and stop, that end at once, that stay silent, that ignore SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from router.lab.child_process import ChildProcess

Write = Callable[[str], object]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A function that writes the source of a module `child`, which a child process can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return (tmp_path / "child.py").write_text


async def test_a_child_is_announced_and_ends_on_sigterm(write: Write) -> None:
    write('import sys, time\nprint(\'{"argument": "%s"}\' % sys.argv[1], flush=True)\ntime.sleep(60)\n')
    child = await ChildProcess.start("child", "x")
    assert await child.read_announcement(10.0) == {"argument": "x"}
    assert child.status is None
    await child.stop(10.0)
    assert child.status == -signal.SIGTERM
    await child.stop(10.0)  # again, without effect


async def test_a_child_that_ends_announces_nothing(write: Write) -> None:
    write("raise SystemExit(3)\n")
    child = await ChildProcess.start("child")
    assert await child.read_announcement(10.0) is None
    assert await child.wait() == 3


async def test_a_silent_child_that_ignores_sigterm_is_killed(write: Write) -> None:
    write(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('{}', flush=True)\ntime.sleep(60)\n"
    )
    child = await ChildProcess.start("child")
    assert await child.read_announcement(10.0) == {}
    assert await child.read_announcement(0.05) is None
    await child.stop(0.1)
    assert child.status == -signal.SIGKILL
