"""A stack of stand-ins: started, watched, killed, and never left behind. Real ones: `tests/stack`."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from router.config.schema import Config
from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack.commands import EngineExtras, prefill
from router.lab.local_stack.preflight import PortTaken
from router.lab.local_stack.supervisor import RunningStack, StackFailed, build_router_config
from tests.fakes.engines import eventually

MakeConfig = Callable[..., LocalStackConfig]


def gone(pid: int) -> bool:
    """No process of that group is left (one that has ended and was not waited for does not count)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) == pid and state != "Z":
            return False
    return True


def test_everything_runs_between_enter_and_exit(make_config: MakeConfig, venv: Path) -> None:
    lines: list[str] = []
    with RunningStack(make_config(), report=lines.append, venv=venv) as stack:
        servers = [*stack.engines, stack.server("master"), stack.server("client")]
        assert [server.name for server in stack.engines] == ["engine-0", "engine-1"]
        assert stack.master_url == f"http://127.0.0.1:{stack.config.master_http_port}"
        assert stack.describe_failure() is None
        assert all(server.log.read_text().startswith("started as") for server in servers)
    assert all(gone(server.pid) for server in servers)
    assert sum("is ready after" in line for line in lines) == 4


def test_without_a_store_there_are_only_engines(make_config: MakeConfig, venv: Path) -> None:
    with RunningStack(make_config(store=False, engines=1), venv=venv) as stack:
        assert stack.master_url is None
        with pytest.raises(KeyError):
            stack.server("master")


def test_one_that_ends_at_once_is_told_with_its_cause_and_nothing_is_left(make_config: MakeConfig, venv: Path) -> None:
    stack = RunningStack(make_config(), [EngineExtras(), EngineExtras(("--die",))], venv=venv)
    with pytest.raises(StackFailed) as failure, stack:
        pass
    assert str(failure.value).startswith("engine-1 ended with status 3: ValueError: no room for the cache; full log: ")
    assert all(gone(stack.server(name).pid) for name in ("master", "client", "engine-0", "engine-1"))


def test_one_that_never_works_is_told(make_config: MakeConfig, venv: Path) -> None:
    lines: list[str] = []
    config = make_config(store=False, start_timeout_s=0.3, engines=1)
    stack = RunningStack(config, [EngineExtras(("--mute",))], report=lines.append, venv=venv)
    hung = r"engine-0 is not ready after 0.3 s \(stack.start_timeout_s\): "
    with pytest.raises(StackFailed, match=hung), stack:
        pass
    (again,) = (line for line in lines if "starting it again" in line)
    assert re.search(hung, again)


def test_one_that_hangs_once_is_started_again(make_config: MakeConfig, venv: Path, tmp_path: Path) -> None:
    config = make_config(store=False, start_timeout_s=5.0, engines=1)
    with RunningStack(config, [EngineExtras((f"--mute-once={tmp_path / 'mute'}",))], venv=venv) as stack:
        assert stack.engines[0].log.read_text().count("started as") == 2


def test_a_port_in_use_is_told_before_anything_starts(make_config: MakeConfig, venv: Path, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        stack = RunningStack(make_config(client_port=holder.getsockname()[1]), venv=venv)
        with pytest.raises(PortTaken, match=r"stack\.client_port"), stack:
            pass
    assert not (tmp_path / "logs").exists()


def test_a_folder_for_logs_that_cannot_be_is_told(make_config: MakeConfig, venv: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stack = RunningStack(make_config(logs_dir=str(tmp_path / "file" / "logs")), venv=venv)
    with (
        pytest.raises(StackFailed, match=r"^stack\.logs_dir: logs cannot be written: .*: choose another folder$"),
        stack,
    ):
        pass


def test_a_kill_is_not_a_death_and_a_restart_has_the_same_port(make_config: MakeConfig, venv: Path) -> None:
    with RunningStack(make_config(), [EngineExtras(("--offspring",))], venv=venv) as stack:
        before = stack.engines[0]
        stack.kill("engine-0")
        deadline = time.monotonic() + 5
        while not gone(before.pid):  # its worker too, which nobody waits for
            assert time.monotonic() < deadline
        assert stack.describe_failure() is None
        stack.start("engine-0")
        stack.wait("engine-0")
        assert stack.engines[0].url == before.url
        assert stack.engines[0].pid != before.pid


async def test_one_that_dies_is_started_again_and_reported(make_config: MakeConfig, venv: Path) -> None:
    lines: list[str] = []
    with RunningStack(make_config(), [EngineExtras(("--offspring",))], report=lines.append, venv=venv) as stack:
        before = stack.engines
        watch = asyncio.create_task(stack.keep_running())
        try:
            for _ in range(2):
                dead = stack.engines[0].pid
                os.kill(dead, 9)
                await eventually(lambda dead=dead: stack.engines[0].pid != dead)  # type: ignore[misc]
                await asyncio.to_thread(stack.wait, "engine-0")
        finally:
            watch.cancel()
        assert stack.engines[0].url == before[0].url
        assert stack.engines[1] == before[1]
        ends = [line for line in lines if "starting it again" in line]
        assert [line.rpartition("in ")[2] for line in ends] == ["0.5 s", "1 s"]
        assert all(line.startswith("engine-0 was killed by signal 9: ") for line in ends)


def test_a_router_config_has_engines_pool_and_tokenizer(make_config: MakeConfig, venv: Path, tmp_path: Path) -> None:
    settings = Config.model_validate({"pool": {"masters": ["http://other:1"], "deadline_ms": 7}})
    with RunningStack(make_config(), [prefill(8998, store=True)], venv=venv) as stack:
        config = build_router_config(settings, stack)
        assert [instance.url for instance in config.fleet.instances] == [server.url for server in stack.engines]
        assert [instance.role for instance in config.fleet.instances] == ["prefill", "both"]
        assert config.pool is not None
        assert (config.pool.masters, config.pool.deadline_ms) == ([stack.master_url], 7)
        assert config.tokenizers["warm-mid"].path == str(tmp_path)
    with RunningStack(make_config(store=False), venv=venv) as stack:
        assert build_router_config(settings, stack).pool is None


def test_stopping_is_quick(make_config: MakeConfig, venv: Path) -> None:
    with RunningStack(make_config(), venv=venv):
        began = time.monotonic()
    assert time.monotonic() - began < 3
