"""The servers of the benchmark, one process each: ours as `warmroute serve`, its peers as released, and the backend.

All routers are in front of the same backends. CPU time and memory are read from /proc. A peer that cannot be installed
raises InstallFailed: its columns stay empty, with a line that says why.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from router.lab.local_stack.install import InstallFailed, cached_venv
from router.lab.local_stack.preflight import free_ports
from tests.gateway.install import install, program, why_unavailable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STARTED_S = 60.0
EVEN = {"policies": {"even": {"scorers": [{"name": "round_robin"}]}}, "active": "even"}

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; user root;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream engines {{ {upstream} }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 900s;
    }}
  }}
}}
"""

Start = Callable[[list[int], Path], AbstractContextManager["Running"]]


@dataclass(frozen=True, slots=True)
class Running:
    """A router that answers. `admin` is our own router's second port, 0 for others."""

    name: str
    port: int
    pid: int
    admin: int = 0

    def pids(self) -> list[int]:
        """Return the process and its children, and theirs."""
        return _family(self.pid)

    def cpu_s(self) -> float:
        """CPU time of the process, its threads and its children so far, in seconds (nanoseconds are counted)."""
        return sum(_cpu_s(pid) for pid in self.pids())

    def rss_mb(self) -> float:
        """Resident memory of the process and its children, in MB."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def get_admin(self, path: str) -> Any:
        """Return the JSON of a path of our router's admin API."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=10) as answer:
            return json.load(answer)


def _cpu_s(pid: int) -> float:
    """Return the time on its CPU clock (clock_getcpuclockid(3)). /proc/PID/stat counts in ticks of 10 ms, which are 4 %
    of what a fast router takes for a short load.
    """
    return time.clock_gettime(~pid << 3 | 2)


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split() if (task / "children").exists() else []:
            found += _family(int(child))
    return found


@contextmanager
def warmroute(
    backends: Sequence[int],
    folder: Path,
    settings: Mapping[str, Any] = EVEN,
    name: str = "warmroute",
    code: Path = ROOT,
) -> Iterator[Running]:
    """Run our router, of the checkout `code`. `settings` are top-level sections of the configuration, beside listeners,
    fleet and log.
    """
    port, admin = free_ports(2)
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"port": admin},
        "fleet": {"instances": [{"url": f"http://127.0.0.1:{backend}"} for backend in backends]},
        "log": {"level": "warning"},
        **settings,
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    command = [sys.executable, "-m", "router", "serve", "--config", str(file)]
    with _running(name, command, port, "/ready", folder, admin, code) as running:
        yield running


def peers_venv() -> Path:
    """Return the environment with vLLM's router and Dynamo's index. Raises InstallFailed when that fails."""
    return cached_venv("bench", HERE / "requirements.txt", lambda _: None, lambda _: None)


@contextmanager
def rust(
    backends: Sequence[int], folder: Path, policy: str = "round_robin", options: Sequence[str] = ()
) -> Iterator[Running]:
    """Run vLLM's own router. Raises InstallFailed when it cannot be installed."""
    command = [str(peers_venv() / "bin" / "vllm-router"), *options]
    with _gateway("vllm-router", command, policy, backends, folder) as running:
        yield running


@contextmanager
def sglang(backends: Sequence[int], folder: Path, policy: str = "round_robin") -> Iterator[Running]:
    """Run SGLang's router. Raises InstallFailed when it cannot be installed."""
    venv = cached_venv("bench-sglang", HERE / "requirements-sglang.txt", lambda _: None, lambda _: None)
    command = [str(venv / "bin" / "python"), "-m", "sglang_router.launch_router"]
    with _gateway("sglang-router", command, policy, backends, folder) as running:
        yield running


@contextmanager
def smg(backends: Sequence[int], folder: Path, policy: str = "round_robin") -> Iterator[Running]:
    """Run the gateway that SGLang's router became. Raises InstallFailed when it cannot be installed."""
    venv = cached_venv("bench-smg", HERE / "requirements-smg.txt", lambda _: None, lambda _: None)
    command = [str(venv / "bin" / "smg"), "launch"]
    with _gateway("smg", command, policy, backends, folder) as running:
        yield running


@contextmanager
def _gateway(
    name: str, command: Sequence[str], policy: str, backends: Sequence[int], folder: Path
) -> Iterator[Running]:
    """Run a router of the family of SGLang's, which have the same options. `command` is its beginning."""
    port, metrics_port = free_ports(2)
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "error"]
    options += ["--prometheus-port", str(metrics_port)]
    options += ["--worker-urls", *(f"http://127.0.0.1:{backend}" for backend in backends)]
    with served(name, [*command, *options], port, folder) as running:
        yield running


@contextmanager
def nginx(backends: Sequence[int], folder: Path, method: str = "") -> Iterator[Running]:
    """Run nginx of the system with one worker. `method` is a directive of its upstream: empty is round robin. Raises
    InstallFailed where it is not installed.
    """
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise InstallFailed("nginx is not installed")
    (port,) = free_ports(1)
    servers = " ".join(f"server 127.0.0.1:{backend};" for backend in backends)
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, port=port, upstream=f"{method} {servers} keepalive 64;"))
    with served("nginx", [program, "-c", str(file), "-e", "stderr"], port, folder) as running:
        yield running


@contextmanager
def envoy(backends: Sequence[int], folder: Path, policy: str = "ROUND_ROBIN") -> Iterator[Running]:
    """Run Envoy with one worker. `policy` is the `lb_policy` of its cluster; a hash is one of the session's id. Raises
    InstallFailed where it cannot be installed.
    """
    if (why := why_unavailable("envoy")) is not None:
        raise InstallFailed(why)
    install("envoy")
    (port,) = free_ports(1)
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": backend}} for backend in backends]
    endpoints = json.dumps([{"endpoint": {"address": address}} for address in addresses])
    template, file = Template((HERE / "envoy.yaml").read_text()), folder / "envoy.yaml"
    file.write_text(template.substitute(port=port, policy=policy, endpoints=endpoints))
    command = [str(program("envoy")), "-c", str(file), "--concurrency", "1", "--disable-hot-restart"]
    with served("envoy", [*command, "--log-level", "error"], port, folder) as running:
        yield running


@contextmanager
def served(name: str, command: list[str], port: int, folder: Path) -> Iterator[Running]:
    """Run any server that answers `GET /health`. Raises InstallFailed when it does not."""
    with _running(name, command, port, "/health", folder) as running:
        yield running


def start_all(
    stack: ExitStack, starts: Sequence[Start], backends: list[int], folder: Path, notes: list[str]
) -> list[Running]:
    """Start all routers that can be started; add a note for each that cannot be installed."""
    running = []
    for start in starts:
        try:
            running.append(stack.enter_context(start(backends, folder)))
        except InstallFailed as failed:
            notes.append(f"{getattr(start, '__name__', start)} is left out: {failed}")
    return running


@contextmanager
def _running(
    name: str, command: list[str], port: int, ready: str, folder: Path, admin: int = 0, code: Path = ROOT
) -> Iterator[Running]:
    log = folder / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=code, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}{ready}", process, log)
        yield Running(name, port, process.pid, admin)
    finally:
        stop(process)


@contextmanager
def engines(
    ports: int, *, events: bool = False, spacing_ms: float | None = None, render_at: int | None = None
) -> Iterator[list[int]]:
    """Run the backend in a process of its own; yield its ports."""
    command = [sys.executable, "-m", "tests.bench.engine", "--ports", str(ports)]
    command += ["--events"] if events else []
    command += ["--spacing-ms", str(spacing_ms)] if spacing_ms is not None else []
    command += ["--render-at", str(render_at)] if render_at is not None else []
    with child(command) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


@contextmanager
def child(command: list[str], code: Path = ROOT) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that is stopped when the block is left; its standard output can be read."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=code, start_new_session=True)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and the processes that it started."""
    for sign, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
            process.wait(patience_s)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


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
