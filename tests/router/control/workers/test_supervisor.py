"""A supervisor of real processes that serve nothing: who lives, who has the duties, and what is counted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from router.clock import SystemClock
from router.config import schema
from router.control.workers import supervisor as supervisor_module
from router.control.workers.supervisor import Supervisor
from router.errors import ConfigError
from router.proxy.listening_sockets import ListeningSockets
from tests.fakes.engines import eventually

LOCAL = {"host": "127.0.0.1", "port": 0}


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def tiny_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start processes that are quick to start, again soon after their end."""
    create = asyncio.create_subprocess_exec

    async def create_tiny(*args: str, **options: Any) -> asyncio.subprocess.Process:
        names = {"router.cli.worker": "tests.router.control.workers.tiny_worker"}
        return await create(*(names.get(arg, arg) for arg in args), **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_tiny)
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("TINY_WORKERS", str(tmp_path))


class Host:
    """A supervisor, and what its workers have noted."""

    def __init__(self, folder: Path, workers: int) -> None:
        config = schema.Config.model_validate(
            {"listen": LOCAL, "admin": LOCAL, "workers": workers, "limits": {"grace_s": 0.1}}
        )
        self.folder = folder
        self.sockets = ListeningSockets()
        self.supervisor = Supervisor(config, None, SystemClock(), only_picker=False, sockets=self.sockets)

    def pid(self, number: int) -> int:
        return self.supervisor._workers[number].process.pid

    def notes(self, pid: int, event: str) -> list[dict[str, Any]]:
        file = self.folder / str(pid)
        lines = file.read_text().splitlines() if file.exists() else []
        return [note for note in map(json.loads, lines) if note["event"] == event]

    def members(self, number: int) -> dict[str, Any]:
        """Return who lives, as the worker with this number knows it last: up or not, by number."""
        (*_, last) = self.notes(self.pid(number), "members")
        last["living"] = {int(number): up for number, (_, up) in last["living"].items()}
        return last

    def agree(self, on_duty: int, *up: int) -> bool:
        """Return whether these and no others live and are up, and all know it and who has the duties."""
        living = dict.fromkeys(up, True)
        if self.supervisor._workers.keys() != {*up} or any(not self.notes(self.pid(n), "members") for n in up):
            return False
        return all(
            (found["living"], found["on_duty"], found["ready"]) == (living, on_duty, True)
            for found in map(self.members, up)
        )

    async def agreed(self, on_duty: int, *up: int) -> None:
        await eventually(lambda: self.agree(on_duty, *up))

    async def kill(self, number: int, by: signal.Signals = signal.SIGKILL) -> int:
        """Kill a worker. Return its process id when another process has its number."""
        killed = self.pid(number)
        os.kill(killed, by)
        await eventually(lambda: number in self.supervisor._workers and self.pid(number) != killed)
        return killed

    async def page(self) -> list[str]:
        return (await self.supervisor.scrape("text")).decode().splitlines()

    async def stop(self) -> None:
        await self.supervisor.stop()
        self.supervisor.release()


@asynccontextmanager
async def host_of(folder: Path, workers: int) -> AsyncIterator[Host]:
    host = Host(folder, workers)
    await host.supervisor.start()
    try:
        await host.agreed(0, *range(workers))
        yield host
    finally:
        await host.stop()


async def test_workers_start_with_the_same_sockets_and_know_each_other(tmp_path: Path) -> None:
    async with host_of(tmp_path, 3) as host:
        starts = [note for n in range(3) for note in host.notes(host.pid(n), "start")]
        assert [start["number"] for start in starts] == [0, 1, 2]
        assert {start["sockets"] for start in starts} == {len(host.sockets.all)} == {4}  # of requests each, and admin
        assert {start["port"] for start in starts} == {host.supervisor.port}
        assert len({start["host"] for start in starts}) == len({start["name"] for start in starts}) == 1
        assert not any(start["learn"] or start["hold"] for start in starts)
        assert host.supervisor.unready_reason() is None
        pids = [host.pid(n) for n in range(3)]
    assert host.supervisor.unready_reason() == "stopping"
    for pid in pids:
        assert host.notes(pid, "stop") == [{"event": "stop", "idle_s": 0.0, "gone": False}]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_worker_that_is_killed_is_replaced_and_what_it_counted_stays(tmp_path: Path) -> None:
    async with host_of(tmp_path, 2) as host:
        for line in ('warmroute_requests_total{worker="0"} 10.0', 'warmroute_requests_total{worker="1"} 10.0'):
            assert line in await host.page()
        await host.kill(1)
        await host.agreed(0, 0, 1)
        page = await host.page()
        assert 'warmroute_requests_total{worker="1"} 20.0' in page
        assert "warmroute_in_flight_requests 2.0" in page
        assert "warmroute_of_duty 0.0" in page
        (start,) = host.notes(host.pid(1), "start")
        assert start["learn"], "the other one has learned something"
        assert len(host.notes(host.pid(0), "start")) == 1


async def test_the_duties_go_to_the_lowest_worker_that_lives_and_stay_there(tmp_path: Path) -> None:
    async with host_of(tmp_path, 3) as host:
        await host.kill(0)
        await host.agreed(1, 0, 1, 2)
        assert "warmroute_of_duty 1.0" in await host.page()
        await host.kill(2)
        await host.agreed(1, 0, 1, 2)
        await host.kill(1)
        await host.agreed(0, 0, 1, 2)


async def test_the_duties_leave_a_worker_that_stops_by_itself_before_it_has_ended(tmp_path: Path) -> None:
    async with host_of(tmp_path, 2) as host:
        stopping = host.pid(0)
        os.kill(stopping, signal.SIGTERM)
        await eventually(lambda: host.members(1)["on_duty"] == 1)
        assert host.pid(0) == stopping
        assert host.members(1)["living"] == {0: False, 1: True}
        await host.kill(0)
        await host.agreed(1, 0, 1)


async def test_a_worker_that_misses_two_pings_in_a_row_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TINY_TROUBLE", "mute")
    async with host_of(tmp_path, 2) as host:
        busy, mute = (host.supervisor._workers[number] for number in range(2))
        busy.missed_pings = 1
        await host.supervisor._ping(busy)
        assert busy.missed_pings == 0
        monkeypatch.setattr(supervisor_module, "PING_TIMEOUT_S", 0.02)
        await host.supervisor._ping(mute)
        assert mute.process.returncode is None
        await host.supervisor._ping(mute)
        await eventually(lambda: host.supervisor._workers.get(1) not in (None, mute))
        assert "worker 1 has not answered 2 pings: killing it" in caplog.text


async def test_a_configuration_with_which_a_worker_cannot_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_TROUBLE", "fails")
    host = Host(tmp_path, 2)
    host.supervisor._on_duty = 1
    with pytest.raises(ConfigError, match="a port is taken"):
        await host.supervisor.start()
    assert host.supervisor.unready_reason() == "stopping"
    await host.stop()


async def test_workers_open_and_join_when_they_may(tmp_path: Path) -> None:
    host = Host(tmp_path, 2)
    await host.supervisor.start(hold=True, join=False)
    try:
        await eventually(lambda: all(host.notes(host.pid(n), "members") for n in range(2)))
        await eventually(lambda: host.supervisor.unready_reason() is None)
        assert host.members(0)["living"][0] is False
        await host.supervisor.open()
        await host.supervisor.join_replicas()
        await host.agreed(0, 0, 1)
        await eventually(lambda: all(host.notes(host.pid(n), "join") for n in range(2)))
        await host.kill(1)
        await host.agreed(0, 0, 1)
        (start,) = host.notes(host.pid(1), "start")
        assert (start["hold"], start["join"]) == (False, True)
    finally:
        await host.stop()


async def test_ports_are_left_to_a_process_that_has_the_sockets(tmp_path: Path) -> None:
    async with host_of(tmp_path, 2) as host:
        await host.supervisor.hand_over()
        for number in range(2):
            assert {"event": "query", "query": "release"} in host.notes(host.pid(number), "query")
        assert host.supervisor.unready_reason() == "stopping"


async def test_a_worker_that_does_not_stop_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "WORKER_END_S", 0.5)
    monkeypatch.setenv("TINY_TROUBLE", "stop")
    async with host_of(tmp_path, 2) as host:
        pids = [host.pid(n) for n in range(2)]
        await host.supervisor.stop(idle_s=2.5)
        assert "worker 1 did not exit in time: killing it" in caplog.text
        assert "worker 0 did not exit" not in caplog.text
        for pid in pids:
            assert host.notes(pid, "stop") == [{"event": "stop", "idle_s": 2.5, "gone": False}]
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_workers_end_when_their_supervisor_is_gone(tmp_path: Path) -> None:
    async with host_of(tmp_path, 2) as host:
        workers = [host.supervisor._workers[n] for n in range(2)]
        host.supervisor._stopping = True  # it starts none again
        for worker in workers:
            worker.channel.close()
        for worker in workers:
            assert await worker.process.wait() == 0
            (stop,) = host.notes(worker.process.pid, "stop")
            assert (stop["idle_s"], stop["gone"]) == (None, True)
