"""`warmroute gameday` as operators run it: the short day, one that is interrupted, one against somebody's router."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.fakes.engines import INSTANT, engine, eventually
from tests.paths import ROOT

LONG_S = 240.0
SEVERAL = """
about: routers and workers that are killed, and clients that hang up besides those that always do
calm_from_s: 2
ends_s: 30
fleet: {engines: 2, routers: 2}
load: {agents: 4, tenants: 2, singles: 1, leavers: 1}
router: {workers: 2, limits: {grace_s: 5}}
at_end: {settled_s: 5, memory_growth: 1.0, count_s: 3}
faults:
  - {fault: kill_worker, at_s: 5, router: 1, must: {failed: 8}}
  - {fault: kill_router, at_s: 12, until_s: 16, router: 1, must: {failed: 8, notice_s: 6}}
  - {fault: hang_ups, at_s: 22, until_s: 28, clients: 12}
"""
CLIENTS_ONLY = """
about: one fault that clients can cause, and one that they cannot
calm_from_s: 1
ends_s: 6
load: {agents: 3}
must: {failed: 0}
faults:
  - {fault: kill, at_s: 1.5, must: {failed: 0}}
  - {fault: hang_ups, at_s: 2, until_s: 4, clients: 4, must: {failed: 0, recover_s: 2}}
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "router", "gameday", *map(str, arguments)]


def children_of(pid: int) -> set[int]:
    """Processes below this one, directly or not."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found, new = set[int](), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


def state_of(pid: int) -> str | None:
    """Its state, such as S, T (stopped) or Z (a zombie); None: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pids: Iterable[int]) -> list[int]:
    """Those that run; zombies do not."""
    return [pid for pid in pids if state_of(pid) not in (None, "Z")]


async def test_the_short_day_holds(tmp_path: Path) -> None:
    report, chart = tmp_path / "day.json", tmp_path / "day.png"
    process = await asyncio.create_subprocess_exec(
        *command("short", "--json", report, "--chart", chart, "--folder", tmp_path / "kept"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    text, _ = await asyncio.wait_for(process.communicate(), LONG_S)
    assert process.returncode == 0, text.decode()
    day = json.loads(report.read_bytes())
    names = ["calm", "kill", "freeze", "lossy_events", "hang_ups", "flood"]
    assert [one["name"] for one in day["faults"]] == names
    assert day["holds"] is True
    assert all(one["requests"] > 20 for one in day["faults"])
    assert [one["name"] for one in day["faults"] if one["notice_s"] is not None] == ["kill", "freeze", "lossy_events"]
    assert all(name in text.decode() for name in names)
    assert chart.stat().st_size > 10_000
    assert "instance engine-1 is down" in (tmp_path / "kept/router-0/router.log").read_text(encoding="utf-8")


async def test_killed_routers_and_workers_leave_nothing(tmp_path: Path) -> None:
    day, report = tmp_path / "day.yaml", tmp_path / "day.json"
    day.write_text(SEVERAL, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *command(day, "--json", report, "--folder", "kept"), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    text, _ = await asyncio.wait_for(process.communicate(), LONG_S)
    assert process.returncode == 0, text.decode()
    found = json.loads(report.read_bytes())
    assert found["violations"] == []
    processes = {(one["name"], one["pid"]) for one in found["processes"]}
    names = sorted(name for name, _ in processes)
    assert names == [  # a worker and then all of the second router are there twice
        *["router-0 supervisor", *["router-0 worker"] * 2],
        *["router-1 supervisor"] * 2,
        *["router-1 worker"] * 5,
    ]
    assert "worker 0 ended with status -9" in (tmp_path / "kept/router-1/router.log").read_text(encoding="utf-8")


async def test_a_day_whose_bounds_do_not_hold_fails(tmp_path: Path) -> None:
    day = tmp_path / "day.yaml"
    fault = "{fault: freeze, at_s: 2, until_s: 3, engine: 0, must: {notice_s: 0.01}}"  # a second is too short to notice
    day.write_text(f"about: x\ncalm_from_s: 1\nends_s: 5\nfleet: {{engines: 2}}\nfaults: [{fault}]\n", encoding="utf-8")
    process = await asyncio.create_subprocess_exec(*command(day), cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    text, _ = await asyncio.wait_for(process.communicate(), LONG_S)
    assert process.returncode == 1
    assert "freeze at 2 s: notice_s broke their bounds" in text.decode()


async def test_ctrl_c_ends_everything_and_reports_what_was(tmp_path: Path) -> None:
    """Also while an engine is stopped, which would otherwise stay so. The signal's default is asked for, as a shell's
    background jobs, these tests among them, ignore Ctrl-C.
    """
    day = tmp_path / "day.yaml"
    fault = "{fault: freeze, at_s: 1, until_s: 500, engine: 0}"
    day.write_text(
        f"about: x\ncalm_from_s: 0\nends_s: 600\nfleet: {{engines: 2}}\nfaults: [{fault}]\n", encoding="utf-8"
    )
    heeding = ("env", "--default-signal=INT", *command(day))
    process = await asyncio.create_subprocess_exec(*heeding, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    await eventually(lambda: any(state_of(pid) == "T" for pid in children_of(process.pid)), 60)
    children = children_of(process.pid)
    assert len(children) >= 3
    process.send_signal(signal.SIGINT)
    text, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, text.decode()
    assert "interrupted: the report holds what was played before" in text.decode()
    await eventually(lambda: not alive(children), 10)


async def test_it_takes_its_processes_along_when_it_is_killed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(*command("short"), cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    await eventually(lambda: len(children_of(process.pid)) >= 4, 60)
    children = children_of(process.pid)
    process.kill()
    await process.wait()
    await eventually(lambda: not alive(children), 10)


async def test_of_somebodys_router_only_clients_are_the_fault(
    router_process: Callable[[Any], AbstractAsyncContextManager[Any]], fleet_config: Callable[..., Any], tmp_path: Path
) -> None:
    day, report = tmp_path / "day.yaml", tmp_path / "day.json"
    day.write_text(CLIENTS_ONLY, encoding="utf-8")
    async with engine(**INSTANT) as fake, router_process(fleet_config([fake])) as router:
        process = await asyncio.create_subprocess_exec(
            *command(day, "--url", router.url, "--json", report), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        text, _ = await asyncio.wait_for(process.communicate(), LONG_S)
        assert process.returncode == 0, text.decode()
    found = json.loads(report.read_bytes())
    assert ([one["name"] for one in found["faults"]], found["skipped"]) == (["calm", "hang_ups"], ["kill"])
    assert "not played: kill at 1.5 s" in text.decode()
