"""`warmroute simulate` on small fleets: what it prints and writes, that it repeats, and what it does with failures."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from router.cli.simulate.command import AllCellsFailed, SweepOutput, simulate
from router.errors import ConfigError
from router.lab.sweep.spec import SweepSpec

FEW: dict[str, Any] = {"workload": "tools", "requests": 40, "instances": "2", "policies": ["warm", "random"]}


def run(asked: SweepSpec, wanted: SweepOutput) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=200)
    whole = simulate(asked, wanted, console)
    assert isinstance(console.file, io.StringIO)
    return whole, console.file.getvalue()


def test_tables_json_charts_and_a_page(tmp_path: Path) -> None:
    asked = SweepSpec(**FEW | {"rho": "0.5,0.9", "seeds": 2})
    whole, told = run(asked, SweepOutput(jobs=2, out=tmp_path, command_line="warmroute simulate and so on"))
    assert whole
    assert told.count("2 instances, no pool, rho") == 2
    assert "Load: rho 0.5, rho 0.9, set by --rho: a share of what each fleet serves without caches" in told
    assert "Means over 2 seeds" in told
    written = json.loads((tmp_path / "simulate.json").read_text())
    assert written["complete"]
    assert written["failed"] == []
    assert len(written["cells"]) == 8
    assert all(cell["requests"] == 40 and cell["double_bookings"] == 0 for cell in written["cells"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "simulate.json", "simulate.html", "ttft.png", "hits.png", "capacity.png",
    }  # fmt: skip
    assert "warmroute simulate and so on" in (tmp_path / "simulate.html").read_text()


def test_a_capacity(tmp_path: Path) -> None:
    asked = SweepSpec(**FEW | {"policies": ["random"], "ttft_limit_s": 5.0})
    _, told = run(asked, SweepOutput(True, jobs=1, out=tmp_path, chart=False))
    assert "First load of the search: rho 0.9, set by default: " in told
    assert "Capacity of 2 instances, no pool" in told
    (found,) = json.loads((tmp_path / "simulate.json").read_text())["capacities"]
    assert found["best"]["share"] >= 0.9
    over = [tried for tried in found["tried"] if tried["load"] > found["best"]["load"]]
    assert over[0]["share"] < 0.9
    assert [path.name for path in tmp_path.iterdir()] == ["simulate.json"]


def test_trouble_shows_in_the_figures_the_words_and_the_json(tmp_path: Path) -> None:
    asked = SweepSpec(
        policies=["warm"], workload="codex", sessions=8, scale=0.2, think=0.2, instances="2", sessions_per_instance="4",
        trouble=f"off,{tmp_path / 'dead.yaml'},{tmp_path / 'deaf.yaml'},{tmp_path / 'slow.yaml'}", host_memory="90000",
    )  # fmt: skip
    deaths = [{"instance": number % 2, "from_s": 10 + 8 * number, "until_s": 11 + 8 * number} for number in range(9)]
    (tmp_path / "dead.yaml").write_text(json.dumps({"down": deaths}))
    (tmp_path / "deaf.yaml").write_text("events_lost: 1\nrouter_starts_s: 30\n")
    (tmp_path / "slow.yaml").write_text("slow: [{instance: 0, factor: 8}]\n")
    _, told = run(asked, SweepOutput(jobs=2, out=tmp_path / "out"))
    page = (tmp_path / "out" / "simulate.html").read_text()
    for said in (
        "host memory at 90,000 tokens/s, trouble dead,",
        "Trouble dead: instance 0 is down from 10 s to 11 s; ",
    ):
        assert said in told
        assert said in page
    written = json.loads((tmp_path / "out" / "simulate.json").read_text())
    assert list(written["troubles"]) == ["dead", "deaf", "slow"]
    assert written["troubles"]["dead"]["failures"][1]["at_s"] == 18
    by = {cell["trouble"]: cell for cell in written["cells"]}
    clean = by["off"]
    assert clean["failed"] == 0
    assert by["dead"]["failed"] > 0
    assert by["dead"]["decisions"] > clean["decisions"]  # some went twice
    assert by["deaf"]["local_share"] < clean["local_share"]
    assert by["slow"]["requests_per_s"] < clean["requests_per_s"]
    assert all(cell["double_bookings"] == 0 and cell["host_memory"] == "90000" for cell in written["cells"])


def test_a_closed_loop() -> None:
    asked = SweepSpec(
        policies=["warm"], workload="codex", sessions=4, scale=0.2, instances="2", sessions_per_instance="2"
    )
    whole, told = run(asked, SweepOutput(jobs=1))
    assert whole
    assert "2 instances, no pool, 2 sessions per instance" in [line.strip() for line in told.splitlines()]


def test_a_trace_brings_each_fleet_the_same_requests_so_that_more_instances_answer_sooner(tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"  # five prompts a second; one instance computes two
    lines = [{"timestamp": 200 * n, "input_length": 8000, "output_length": 2} for n in range(60)]
    names = [{"hash_ids": [16 * n + block for block in range(16)]} for n in range(60)]
    trace.write_text("".join(json.dumps(line | own) + "\n" for line, own in zip(lines, names, strict=True)))
    asked = SweepSpec(policies=["least_requests"], workload=str(trace), instances="1,4")
    _, told = run(asked, SweepOutput(jobs=1, out=tmp_path, chart=False))
    assert f"Load: 5 requests/s as recorded in {trace}, the same for every fleet" in told
    assert "Engines: profile qwen3-32b-2xh100, a KV cache of 307,328 tokens each; `warmroute profile` writes" in told
    small, large = json.loads((tmp_path / "simulate.json").read_text())["cells"]
    assert small["requests_per_s_offered"] == large["requests_per_s_offered"] == pytest.approx(5.0)
    assert large["ttft_p90_s"] < 1.0 < 10 * large["ttft_p90_s"] < small["ttft_p90_s"]
    (needed,) = [line.split() for line in told.splitlines() if line.split()[-1:] == ["4"]]
    assert needed[0] == "least_requests"
    assert float(needed[-3].strip("%")) < 90 < float(needed[-2].strip("%"))


def said_by(hash_seed: str, jobs: str) -> bytes:
    command = [sys.executable, "-m", "router", "simulate", "--json", "-p", "warm,prefix_softmax", "-w", "tools"]
    command += ["--requests", "60", "-n", "2,3", "--pool", "40000", "--trouble", "off,dies,lossy", "--jobs", jobs]
    return subprocess.run(
        command, capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": hash_seed}
    ).stdout


def test_the_same_bytes_by_any_number_of_processes_and_any_hash_seed() -> None:
    first = said_by("1", "1")
    assert len(json.loads(first)["cells"]) == 2 * 2 * 3
    assert said_by("2", "2") == first


def test_a_failed_cell_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    one = tmp_path / "one.jsonl"  # its one request has no rate that could be changed
    one.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n')
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(AllCellsFailed, match="all 2 cells failed"):
        simulate(
            SweepSpec(**FEW | {"workload": str(one), "requests": None, "rho": "0.9"}), SweepOutput(jobs=1), console
        )
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "warm, 2 instances, no pool, rho 0.9, seed 1 failed: ValueError" in told
    assert "random, 2 instances, no pool, rho 0.9, seed 1 failed: ValueError" in told


def test_ctrl_c_ends_the_simulating_and_what_is_done_is_told(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    def press() -> None:
        waited = threading.Event()
        while signal.getsignal(signal.SIGINT) is before:
            waited.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press, daemon=True)
    pressing.start()
    whole, told = run(SweepSpec(**FEW | {"seeds": 50}), SweepOutput(jobs=1, out=tmp_path, chart=False))
    pressing.join()
    assert not whole
    assert "Interrupted: the report holds what was done before." in told
    written = json.loads((tmp_path / "simulate.json").read_text())
    assert not written["complete"]
    assert len(written["cells"]) < 100
    assert signal.getsignal(signal.SIGINT) is before


def test_capacity_with_several_loads_is_refused() -> None:
    with pytest.raises(ConfigError, match="--find-capacity searches for the load"):
        simulate(SweepSpec(**FEW | {"rho": "0.5,0.9"}), SweepOutput(True))
