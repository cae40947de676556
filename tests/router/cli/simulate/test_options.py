"""The command line of `warmroute simulate`: what it says arrives, and what is wrong ends it with 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def warmroute(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "router", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_options_reach_the_cells_and_the_page_quotes_them(tmp_path: Path) -> None:
    given = [
        "-p",
        "warm",
        "-w",
        "tools",
        "--requests",
        "30",
        "-n",
        "2",
        "--rate",
        "3",
        "--pool",
        "40000",
        "--lags",
        "10:100",
        "--host-memory",
        "80000:1e6",
        "--trouble",
        "slow",
        "--routers",
        "2",
        "--exchange",
        "2:1",
        "--until",
        "9",
        "--jobs",
        "1",
    ]
    ended = warmroute(*given, "--out", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    written = json.loads((tmp_path / "simulate.json").read_text())
    asked = written["asked"]
    assert (asked["policies"], asked["rate"], asked["lags"], asked["until_s"]) == (["warm"], "3", "10:100", 9.0)
    (cell,) = written["cells"]
    assert (cell["host_memory"], cell["trouble"]) == ("80000:1e6", "slow")
    assert (cell["routers"], cell["exchange"], cell["sticky"]) == (2, "2:1", False)
    assert cell["requests"] < 30
    assert f"warmroute simulate {' '.join(given)}" in (tmp_path / "simulate.html").read_text()


def test_what_is_wrong_is_said_and_ends_it_with_two() -> None:
    ended = warmroute("-p", "worm", "-w", "tool")
    assert ended.returncode == 2
    assert 'did you mean "warm"?' in ended.stderr
    assert 'did you mean "tools"?' in ended.stderr
    assert "Traceback" not in ended.stderr


def test_speed_of_a_closed_loop_is_refused() -> None:
    ended = warmroute("--speed", "--sessions", "1")
    assert ended.returncode == 2
    assert "give an open one" in ended.stderr
