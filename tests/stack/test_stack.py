"""`warmroute stack` as a user starts it: ready, answers, knows the pool, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router.lab.local_stack.install import Models
from router.lab.local_stack.preflight import free_ports
from tests.paths import ROOT
from tests.stack.children import Child, until

pytestmark = pytest.mark.stack

READY_S = 150.0
BLOCK_TOKENS = 128
PROMPT = [1000 + i % 2000 for i in range(6 * BLOCK_TOKENS + 5)]

Configured = Callable[..., Path]


@pytest.fixture
def configured(tmp_path: Path, models: Models) -> Configured:
    """configs/stack-cpu.yaml with the tiny model, less memory and ports of its own."""

    def make(**stack: Any) -> Path:
        settings = yaml.safe_load((ROOT / "configs" / "stack-cpu.yaml").read_text())
        settings["listen"]["port"], settings["admin"]["port"] = free_ports(2)
        settings["policies_dir"] = str(ROOT / "configs" / "policies")
        ports = dict(zip(("master_port", "master_http_port", "client_port"), free_ports(3), strict=True))
        small = {"model": str(models.tiny), "kv_cache_bytes": 64 << 20, "pool_bytes": 256 << 20}
        settings["stack"] |= {**ports, **small, "first_port": 0, "logs_dir": str(tmp_path / "logs"), **stack}
        file = tmp_path / "stack.yaml"
        file.write_text(yaml.safe_dump(settings))
        return file

    return make


class Command:
    """The running command and its clients."""

    def __init__(self, file: Path, folder: Path) -> None:
        settings = yaml.safe_load(file.read_text())
        self.child = Child("stack", [sys.executable, "-m", "router", "stack", "--config", str(file)], folder)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{settings['listen']['port']}", timeout=180.0)
        self.admin = httpx.Client(base_url=f"http://127.0.0.1:{settings['admin']['port']}", timeout=10.0)

    def ready(self) -> bool:
        try:
            return self.http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def said(self) -> str:
        return self.child.log.read_text(errors="replace")

    def ended(self, patience_s: float = 30.0) -> int:
        """Its exit code, when it ends by itself."""
        until("the command ends", lambda: not self.child.running(), patience_s)
        code = self.child.stop()
        assert code is not None
        return code


@contextmanager
def running(file: Path, folder: Path) -> Iterator[Command]:
    command = Command(file, folder)
    command.child.start()
    try:
        yield command
    finally:
        command.child.kill()
        command.http.close()
        command.admin.close()


def family(pid: int) -> set[int]:
    """All processes below it."""
    children: set[int] = set()
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children |= {int(child) for child in (task / "children").read_text().split()}
    return children.union(*(family(child) for child in children)) if children else children


def alive(pids: set[int]) -> set[int]:
    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "gone"

    return {pid for pid in pids if state(pid) not in ("gone", "Z")}


def record(command: Command, record_id: str) -> dict[str, Any]:
    def fetch() -> dict[str, Any]:
        found: dict[str, Any] = command.admin.get(f"/admin/records/{record_id}").raise_for_status().json()
        return found

    until("the record is done", lambda: fetch()["done"])
    return fetch()


def test_from_start_to_ctrl_c(configured: Configured, tmp_path: Path) -> None:
    with running(configured(), tmp_path) as command:
        command.child.wait(command.ready, READY_S)
        processes = family(command.child.pid)
        assert {"master", "client", "engine-0", "engine-1"} == {file.stem for file in (tmp_path / "logs").glob("*.log")}

        chat = {"model": "warm-mid", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4}
        answer = command.http.post("/v1/chat/completions", json=chat)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["role"] == "assistant"

        until("the router knows what the pool holds", lambda: predicted(command) == 6 * BLOCK_TOKENS, 30.0)

        command.child.signal(signal.SIGINT)
        assert command.ended() == 0
        assert alive(processes) == set()
        assert "Ready. Try it:" in command.said()
        assert "engine-0 is ready after" in command.said()


def predicted(command: Command) -> int | None:
    """Tokens of a prompt that the pool holds, as the router's record has it; None: it does not know."""
    answer = command.http.post("/v1/completions", json={"model": "warm-mid", "prompt": PROMPT, "max_tokens": 1})
    assert answer.status_code == 200
    held = record(command, answer.headers["x-warmroute-record"])["attempts"][-1]["view"]["pool"]
    return None if held is None else int(held["tokens"])


def test_a_port_in_use_is_one_line(configured: Configured, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with running(configured(master_http_port=port), tmp_path) as command:
            assert command.ended() == 1
            assert command.said().splitlines() == [
                f"port {port} is in use: stop what listens there, or change stack.master_http_port"
            ]


def test_a_child_that_dies_ends_everything(configured: Configured, tmp_path: Path) -> None:
    """A child that got a wrong option is quoted."""
    with running(configured(engine_args=["--block-size", "17"]), tmp_path) as command:
        assert command.ended(READY_S) == 1
        last = command.said().splitlines()[-1]
        assert last.startswith("engine-")
        assert "17" in last


@pytest.mark.long
def test_a_killed_engine_is_started_again(configured: Configured, tmp_path: Path) -> None:
    def find_engines() -> list[int]:
        found = family(command.child.pid)
        return [pid for pid in found if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]

    with running(configured(engines=1), tmp_path) as command:
        command.child.wait(command.ready, READY_S)
        (engine,) = find_engines()
        os.kill(engine, signal.SIGKILL)
        until("it is down", lambda: not command.ready(), 30.0)
        command.child.wait(command.ready, READY_S)
        assert engine not in find_engines()
        assert "engine-0 was killed by signal 9" in command.said()


@pytest.mark.long
def test_nothing_outlives_a_command_that_is_killed(configured: Configured, tmp_path: Path) -> None:
    with running(configured(engines=1), tmp_path) as command:
        log = tmp_path / "logs" / "engine-0.log"
        until("an engine has workers", lambda: log.exists() and "(EngineCore pid=" in log.read_text(), 60.0)
        processes = family(command.child.pid)
        command.child.signal(signal.SIGKILL)
        until("all are gone", lambda: alive(processes) == set())
