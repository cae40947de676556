"""The routers that are measured: ours as `warmroute serve` with the policy `round_robin`, and the Rust `vllm-router`.

Both run as they come, one process each, in front of the same backend. A peer that cannot be installed is left out,
with a line that says why.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from router.stack.install import InstallFailed, cached_venv

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STARTED_S = 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Running:
    """A router that answers."""

    name: str
    port: int
    pid: int

    def cpu_s(self) -> float:
        """CPU time of the process, its threads and its children so far, in seconds (resolution: a scheduler tick)."""
        return sum(_cpu_ticks(pid) for pid in _family(self.pid)) / TICKS_PER_S

    def rss_mb(self) -> float:
        """Resident memory of the process and its children, in MB."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in _family(self.pid))
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])  # utime and stime: fields 14 and 15 of proc(5)


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split() if (task / "children").exists() else []:
            found += _family(int(child))
    return found


@contextmanager
def warmroute(backends: list[int], folder: Path) -> Iterator[Running]:
    port, admin = free_port(), free_port()
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"port": admin},
        "fleet": {"instances": [{"url": f"http://127.0.0.1:{backend}"} for backend in backends]},
        "policies": {"even": {"scorers": [{"name": "round_robin"}]}},
        "active": "even",
        "log": {"level": "warning"},
    }
    file = folder / "warmroute.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    command = [sys.executable, "-m", "router", "serve", "--config", str(file)]
    with _running("warmroute", command, port, "/ready", folder) as running:
        yield running


@contextmanager
def rust(backends: list[int], folder: Path) -> Iterator[Running]:
    """Raises InstallFailed when it cannot be had."""
    venv = cached_venv("bench", HERE / "requirements.txt", lambda _: None)
    port = free_port()
    command = [str(venv / "bin" / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", "round_robin", "--prometheus-port", str(free_port()), "--log-level", "error"]
    command += ["--worker-urls", *(f"http://127.0.0.1:{backend}" for backend in backends)]
    with _running("vllm-router", command, port, "/health", folder) as running:
        yield running


@contextmanager
def _running(name: str, command: list[str], port: int, ready: str, folder: Path) -> Iterator[Running]:
    log = folder / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}{ready}", process, log)
        yield Running(name, port, process.pid)
    finally:
        stop(process)


@contextmanager
def engines(ports: int, *, events: bool = False) -> Iterator[list[int]]:
    """The backend in a process of its own: its ports."""
    command = [sys.executable, "-m", "tests.bench.engine", "--ports", str(ports), *(["--events"] if events else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it started."""
    for sign, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
            process.wait(patience_s)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if process.poll() is not None:
                break
            time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise InstallFailed(f"{url} does not answer (exit code {process.poll()}):\n{tail}")
