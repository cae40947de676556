"""The benchmark of cache layers on a real stack, small: each layer is what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from router.lab.local_stack.install import Models
from tests.paths import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.long]

DONE_S = 240.0


def test_bench_layers(models: Models, tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / "configs" / "stack-cpu.yaml").read_text())
    ports = dict.fromkeys(("first_port", "master_port", "master_http_port", "client_port"), 0)
    small = {"model": str(models.tiny), "kv_cache_bytes": 64 << 20, "pool_bytes": 256 << 20, "logs_dir": str(tmp_path)}
    settings["stack"] |= ports | small
    settings["policies_dir"] = str(ROOT / "configs" / "policies")
    file = tmp_path / "stack.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "tests.bench.real_stack", "layers", "-c", str(file), "-o", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--tokens", "2048", "--repetitions", "2"], capture_output=True, text=True, timeout=DONE_S, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Greedy answers the same tokens in all four: 2 of 2 repetitions." in done.stdout
    told = json.loads((tmp_path / "out" / "layers.json").read_text())
    assert [one["kind"] for one in told["requests"]] == ["cold", "local", "pool", "control"] * 2
    assert all(one["source"] == one["expected"] for one in told["requests"])
    assert (tmp_path / "out" / "layers.png").read_bytes().startswith(b"\x89PNG")
