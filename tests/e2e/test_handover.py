"""A new router process replaces the one that runs, under load: no connection is refused, and none is reset."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from router.lab.local_stack.preflight import free_ports
from tests.e2e.chats import PATH, beside
from tests.e2e.conftest import Json, RouterProcess
from tests.e2e.handover import HOST, Connection, Load, Service, body_of
from tests.e2e.test_lifecycle import command, ended
from tests.e2e.workers import all_up
from tests.fakes.engines import engine, eventually

STOP_S = 15.0  # in which the old process has to end
FAST = {"decode_ms_per_token": 5}


def listening(config: Json, ports: list[int]) -> Json:
    public, admin, metrics = ports
    return config | {
        "listen": {"host": HOST, "port": public},
        "admin": {"host": HOST, "port": admin},
        "metrics": {"host": HOST, "port": metrics},
    }


async def replaced(load: Load, old: RouterProcess, answers: int = 50) -> None:
    """The old process has ended, and the new one has answered since."""
    assert await ended(old.process, STOP_S) == 0
    before = load.answers.total()
    await eventually(lambda: load.answers.total() >= before + answers or load.failures, STOP_S)


def prompts(load: Load, port: int, clients: int = 8) -> list[Coroutine[Any, Any, None]]:
    """Clients of all kinds."""
    return [load.prompts(Service(port), keep=n % 2 > 0, stream=n % 4 > 1) for n in range(clients)]


@pytest.mark.rollout
async def test_a_new_process_takes_over_under_load(router_process, fleet_config) -> None:
    """From one process to two workers, with the admin and the metrics port."""
    ports = public, admin, metrics = free_ports(3)
    async with engine(**FAST) as a, engine(**FAST) as b:
        config = listening(fleet_config([a, b]), ports)
        async with router_process(config) as old:
            load = Load()
            pages = [load.get(admin, "/admin/instances"), load.get(metrics, "/metrics")]
            async with load.running(*prompts(load, public), *pages):
                await eventually(lambda: load.answers.total() > 50 or load.failures)
                new_one = router_process(config | {"workers": 2}, "--take-over")
                async with beside(ended_while_streaming(old, public)) as streaming, new_one as new:
                    await streaming
                    await replaced(load, old)
                    await load.stop()
                    assert old.errors + new.errors == [], (old.log + new.log).decode()[-9000:]
            assert load.failures == []
            assert len(load.answers) >= 2
            assert min(load.pages.values()) > 10


@pytest.mark.rollout
async def test_workers_take_over_from_workers(router_process, fleet_config) -> None:
    ports = public, _, _ = free_ports(3)
    async with engine(**FAST) as a, engine(**FAST) as b:
        config = listening(fleet_config([a, b], workers=2), ports)
        async with router_process(config) as old:
            await all_up(old)
            load = Load()
            async with load.running(*prompts(load, public)), router_process(config, "--take-over") as new:
                await replaced(load, old)
                await all_up(new)
                await load.stop()
                assert old.errors + new.errors == [], (old.log + new.log).decode()[-9000:]
            assert load.failures == []


@pytest.mark.rollout
async def test_a_picker_takes_over_from_a_picker(router_process, fleet_config) -> None:
    """Behind a gateway that keeps its connections, with requests to the proxy beside it."""
    public, picker, health, *rest = free_ports(5)
    async with engine(**FAST) as a:
        config = listening(fleet_config([a]), [public, *rest])
        config["picker"] = {"host": HOST, "port": picker, "health_port": health, "tls": "off"}
        async with router_process(config) as old:
            load = Load()
            gateways = [load.exchanges(picker) for _ in range(4)]
            async with load.running(*gateways, *prompts(load, public, 2)):
                await eventually(lambda: load.choices.total() > 20 or load.failures)
                async with router_process(config, "--take-over") as new:
                    await replaced(load, old)
                    before = load.choices.total()
                    await eventually(lambda: load.choices.total() > before + 20 or load.failures)
                    await load.stop()
                    assert old.errors + new.errors == [], (old.log + new.log).decode()[-9000:]
            assert load.failures == []
            assert len(load.choices) == 2


@pytest.mark.rollout
async def test_one_of_several_replicas_is_replaced(router_process, fleet_config, monkeypatch) -> None:
    """The new process joins the other router in place of the old one."""
    monkeypatch.setenv("WARMROUTE_TEST_REPLICAS", "0123456789abcdef" * 2)
    public, admin, metrics, mine, theirs = free_ports(5)
    replicas = {"peers": [f"{HOST}:{mine}", f"{HOST}:{theirs}"], "secret_env": "WARMROUTE_TEST_REPLICAS", "host": HOST}
    async with engine(**FAST) as a:
        config = listening(fleet_config([a], replicas=replicas | {"port": mine}), [public, admin, metrics])
        async with (
            router_process(fleet_config([a], replicas=replicas | {"port": theirs})) as other,
            router_process(config) as old,
        ):
            (before,) = await up_replicas(other)
            load = Load()
            async with load.running(*prompts(load, public, 4)), router_process(config, "--take-over") as new:
                await replaced(load, old)
                await load.stop()
                assert await up_replicas(new)
                assert await up_replicas(other, but=before)
                assert old.errors + new.errors + other.errors == []
            assert load.failures == []


async def up_replicas(router: RouterProcess, but: str = "") -> list[str]:
    """The runs of other routers, except `but`, as soon as there is one."""
    async with asyncio.timeout(STOP_S):
        while True:
            found = (await router.admin.get("/admin/replicas")).raise_for_status().json()["replicas"]
            runs = [one["run"] for one in found if one["up"] and not one["own"] and one["run"] != but]
            if runs:
                return runs
            await asyncio.sleep(0.05)


@pytest.mark.rollout
async def test_a_pod_that_another_one_replaces_loses_nothing(router_process, fleet_config) -> None:
    """A rolling update: another router on another port is ready, new connections go there, then SIGTERM."""
    first, second = free_ports(3), free_ports(3)
    async with engine(**FAST) as a, router_process(listening(fleet_config([a]), first)) as old:
        load, service = Load(), Service(first[0])
        kinds = [load.prompts(service, keep=n % 2 > 0, stream=n % 4 > 1) for n in range(8)]
        async with load.running(*kinds):
            await eventually(lambda: load.answers.total() > 50 or load.failures)
            async with router_process(listening(fleet_config([a]), second)) as new:
                service.endpoints = [first[0], second[0]]
                before = load.answers.total()
                await eventually(lambda: load.answers.total() > before + 50 or load.failures)
                service.endpoints = [second[0]]  # what the pause before SIGTERM is for
                old.process.send_signal(signal.SIGTERM)
                await replaced(load, old)
                await load.stop()
                assert old.errors + new.errors == [], (old.log + new.log).decode()[-9000:]
        assert load.failures == []
        assert len(load.answers) == 2


@pytest.mark.rollout
async def test_a_process_that_does_not_become_ready_changes_nothing(router_process, fleet_config, tmp_path) -> None:
    public, admin, metrics = free_ports(3)
    nobody = "http://127.0.0.1:9"
    async with engine(**FAST) as a:
        config = listening(fleet_config([a]), [public, admin, metrics])
        async with router_process(config) as old:
            load = Load()
            async with load.running(*prompts(load, public), load.get(admin, "/admin/instances")):
                file = tmp_path / "wrong.yaml"
                file.write_text(json.dumps(config | {"fleet": {"instances": [{"url": nobody}]}}))
                async with command("serve", "--config", file, "--take-over") as new:
                    await eventually(lambda: b"a new process has the listening sockets" in old.log, STOP_S)
                    assert new.stderr is not None
                    await new.stderr.readuntil(b"for a ready engine before accepting connections")
                    before = load.answers.total()
                    await eventually(lambda: load.answers.total() > before + 50)
                    new.send_signal(signal.SIGTERM)
                    assert await ended(new, STOP_S) == 1
                    assert b"the running router continues" in await new.stderr.read()
                before = load.answers.total()
                await eventually(lambda: load.answers.total() > before + 50)
            assert old.process.returncode is None
            assert (load.failures, len(load.answers)) == ([], 1)


@pytest.mark.rollout
async def test_sockets_of_a_service_manager_outlive_the_router(router_process, fleet_config, tmp_path) -> None:
    """Requests that come while no router runs are answered by the next one."""
    with socket.create_server((HOST, 0)) as public, socket.create_server((HOST, 0)) as admin:
        ports = [int(one.getsockname()[1]) for one in (public, admin)]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(tmp_path / "notify"))
            manager.setblocking(False)
            env = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
            async with engine(**FAST) as a:
                config = listening(fleet_config([a]), [*ports, *free_ports(1)])
                started = partial(router_process, config, passed=[public, admin], env=env)
                async with beside(asked_once(ports[0])) as early, started() as first:
                    await early
                    assert manager.recv(100) == b"READY=1"
                    async with beside(asked_once(ports[0], 100)) as streaming:
                        await eventually(lambda: a.gauges().running == 1)
                        first.process.send_signal(signal.SIGTERM)
                        await eventually(lambda: b"stopping: requests in progress" in first.log)
                        assert manager.recv(100) == b"STOPPING=1"
                        async with beside(asked_once(ports[0])) as waiting:
                            await streaming
                            assert await ended(first.process, STOP_S) == 0
                            assert not waiting.done()
                            async with started():
                                await waiting


async def asked_once(port: int, tokens: int = 8) -> str:
    """Ask on a connection of its own, and return the run of the process that answered."""
    connection = await Connection.open(port)
    headers = await connection.ask("POST", PATH, body_of(tokens, stream=True))
    connection.close()
    return headers["x-warmroute-record"].partition("-")[0]


@pytest.mark.rollout
async def test_connections_that_wait_for_a_worker_that_dies_are_served(router_process, fleet_config) -> None:
    public, admin, metrics = free_ports(3)
    async with (
        engine(**FAST) as a,
        router_process(listening(fleet_config([a], workers=2), [public, admin, metrics])) as router,
    ):
        leader, follower = await all_up(router)
        os.kill(follower["pid"], signal.SIGSTOP)
        asking = [asyncio.create_task(asked_once(public)) for _ in range(40)]  # all to one: once in 2**39
        await eventually(lambda: a.gauges().running == 0 and any(task.done() for task in asking))
        os.kill(follower["pid"], signal.SIGKILL)
        assert 0 < sum(task.done() for task in asking) < 40
        async with asyncio.timeout(STOP_S):
            assert set(await asyncio.gather(*asking)) == {leader["run"]}  # none waited for the next worker


async def ended_while_streaming(old: RouterProcess, port: int) -> None:
    """A stream that begins before another process takes over, and ends after it."""
    await eventually(lambda: b"a new process has the listening sockets" in old.log, STOP_S)
    connection = await Connection.open(port)
    async with beside(connection.ask("POST", PATH, body_of(4_000, stream=True))) as streaming:
        await eventually(lambda: b"stopping: requests in progress" in old.log, STOP_S)
        assert not streaming.done()
        await streaming
    connection.close()
