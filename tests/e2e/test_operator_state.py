"""Drains and policies that an operator set outlive the process: a restart, and a take-over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from router.lab.local_stack.preflight import free_ports
from tests.e2e.conftest import RouterProcess
from tests.e2e.handover import HOST
from tests.e2e.test_lifecycle import ended
from tests.e2e.workers import all_up
from tests.fakes.engines import engine, eventually

STOP_S = 15.0


async def set_by_operator(router: RouterProcess) -> None:
    """Drain the second engine, and let another policy decide."""
    second = (await router.admin.get("/admin/instances")).json()["instances"][1]["id"]
    assert (await router.admin.post(f"/admin/instances/{second}/drain")).status_code == 200
    assert (await router.admin.post("/admin/activate", json={"policy": "random"})).status_code == 200


async def in_force(router: RouterProcess) -> tuple[list[bool], str]:
    """Which engines are drained, and the policy."""
    instances = (await router.admin.get("/admin/instances")).raise_for_status().json()["instances"]
    policies = (await router.admin.get("/admin/policies")).raise_for_status().json()
    return [instance["state"] == "drained" for instance in instances], policies["active"]


async def stop(router: RouterProcess) -> None:
    router.process.send_signal(signal.SIGTERM)
    assert await ended(router.process, STOP_S) == 0


async def test_a_restart_keeps_what_an_operator_set(router_process, fleet_config, tmp_path: Path) -> None:
    async with engine() as a, engine() as b:
        audit, state = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.state"
        config = fleet_config([a, b], admin={"audit_file": str(audit)})
        async with router_process(config) as first:
            await set_by_operator(first)
            await eventually(lambda: "activate random" in state.read_text())
            first.process.kill()
            await ended(first.process, STOP_S)
        async with router_process(config) as second:
            await eventually(lambda: b"is ready" in second.log)
            assert await in_force(second) == ([False, True], "random")
            assert b"kept from before: " in second.log
            assert b" drained, activate random by anybody" in second.log
            await stop(second)
        async with router_process(config, "--as-configured") as third:
            assert await in_force(third) == ([False, False], "warm")
            assert b"kept from before" not in third.log
            await stop(third)
        async with router_process(config) as fourth:
            assert await in_force(fourth) == ([False, False], "warm")


async def test_what_is_not_kept_is_logged(router_process, fleet_config) -> None:
    async with engine() as a, engine() as b, router_process(fleet_config([a, b])) as router:
        await set_by_operator(router)
        await stop(router)
        assert b"not kept, as admin.audit_file is not set: " in router.log
        assert b" drained, activate random by anybody" in router.log


@pytest.mark.rollout
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1)])
async def test_a_process_that_takes_over_knows_what_an_operator_set(
    router_process, fleet_config, before: int, after: int
) -> None:
    public, admin, metrics = free_ports(3)
    async with engine() as a, engine() as b:
        listen = {"listen": {"host": HOST, "port": public}, "admin": {"host": HOST, "port": admin}}
        config = fleet_config([a, b], **listen, metrics={"host": HOST, "port": metrics})
        async with router_process(config | {"workers": before}) as old:
            if before > 1:
                await all_up(old)
            await set_by_operator(old)
            async with router_process(config | {"workers": after}, "--take-over") as new:
                assert await ended(old.process, STOP_S) == 0
                assert b"not kept" not in old.log
                assert await in_force(new) == ([False, True], "random")
                if after > 1:
                    await all_up(new)
                assert b"kept from before: " in new.log
