"""The doctor beside a running router: what the router knows of faults that no engine shows by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router.clock import SystemClock
from router.lab.local_stack.preflight import free_ports
from router.operate.doctor.gather import DoctorOptions
from router.operate.doctor.suite import Examination, examine
from tests.e2e.conftest import LOCAL, Json, Router, RouterProcess, config_of
from tests.e2e.workers import all_up
from tests.fakes.engines import FakeEngine, engine, eventually

pytestmark = pytest.mark.doctor

Start = Callable[..., AbstractAsyncContextManager[Router]]
StartProcess = Callable[[Json], AbstractAsyncContextManager[RouterProcess]]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def named(examination: Examination) -> dict[str, str]:
    """What was found, without notes, by check."""
    return {
        one.finding.check: f"{one.finding.where}: {one.finding.what} | {one.finding.change}"
        for one in examination.findings
        if one.finding.severity != "note"
    }


async def look(router: Any, config: Path | None = None, **options: Any) -> Examination:
    return await examine(DoctorOptions(config, (router.admin_url,), **options), SystemClock())


async def ask(router: Router, prompt: str, **headers: str) -> int:
    body = {"model": "warm-tiny", "prompt": prompt, "max_tokens": 1, "stream": True}
    return (await router.post(COMPLETIONS, body, headers=headers)).status_code


async def test_a_healthy_router_of_several_processes(router_process: StartProcess, tmp_path: Path) -> None:
    async with engine() as a, engine() as b:
        config = config_of([a, b], active="warm", policies={}, workers=2)
        port, admin_port = free_ports(2)
        config["listen"], config["admin"] = LOCAL | {"port": port}, LOCAL | {"port": admin_port}
        async with router_process(config) as router:
            await all_up(router)
            examination = await look(router, tmp_path / "router.yaml")
            alone = await look(router)
    assert named(examination) == named(alone) == {}
    assert {"routers.targets", "alerts.firing", "hits.agree"} <= set(examination.checks)
    assert alone.engines == 2


async def test_a_drained_and_a_dead_engine(router: Start) -> None:
    async with engine() as a, engine() as b, router([a, b]) as running:
        await running.admin.post(f"/admin/instances/{a.address}/drain")
        b.faults(unhealthy=True)
        await eventually(lambda: all(i.state.value != "ready" for i in running.core.fleet), 10.0)
        examination = await look(running)
    found = [one.finding for one in examination.findings if one.finding.check == "routers.instances"]
    assert {(one.severity, one.at) for one in found} == {("warning", (a.address,)), ("fault", (b.address,))}
    change = next(one.change for one in found if one.severity == "warning")
    assert change == f"warmroute undrain {a.address} --admin {running.admin_url}"


async def test_an_open_breaker_and_its_alert(router_process: StartProcess, tmp_path: Path) -> None:
    async with engine() as a, engine() as b:
        config = config_of([a, b])
        port, admin_port = free_ports(2)
        config["listen"], config["admin"] = LOCAL | {"port": port}, LOCAL | {"port": admin_port}
        config["fleet"]["breaker"] = {"open_s": 60.0}
        async with router_process(config) as running:
            a.faults(error_rate=1.0)
            b.faults(error_rate=1.0)
            for n in range(12):
                await ask(running, f"prompt {n}")  # type: ignore[arg-type]
            a.faults(error_rate=0.0)
            b.faults(error_rate=0.0)
            found = named(await look(running, tmp_path / "router.yaml"))
    assert "its circuit breaker is open" in found["routers.targets"]
    assert "the alert WarmrouteBreakerOpen fires" in found["alerts.firing"]


async def test_a_speed_prior_that_is_far_from_what_was_learned(router: Start, tmp_path: Path) -> None:
    async with engine(prefill_tokens_per_s=20_000) as a:
        slow = {"speed_prior": {"us_per_token": 5000.0}}
        async with router([a], fleet=slow) as running:
            for n in range(16):
                await ask(running, f"{n} " + "once upon a time there was a port " * 20)
            file = tmp_path / "main.yaml"
            file.write_text(
                yaml.safe_dump(config_of([a], fleet=slow) | {"fleet": slow | {"instances": [{"url": a.url}]}})
            )
            examination = await look(running, file)
    (found,) = [one for one in examination.findings if one.finding.check == "policies.speed_priors"]
    assert "fleet.speed_prior says 10," in found.finding.what
    (place,) = found.places
    assert file.read_text().splitlines()[place.line - 1].strip() == "us_per_token: 5000.0"
    assert found.edits[0].value < 1000


async def test_a_load_balancer_in_front(router: Start) -> None:
    async with engine() as a, router([a]) as running:
        for n in range(25):
            assert await ask(running, f"user {n} says hello", **{"x-session-id": f"s{n}"}) == 200
        found = named(await look(running))
    assert "sessions come from one address, 127.0.0.1" in found["limits.load_balancer"]
    assert 'trusted_proxies: ["127.0.0.1"]' in found["limits.load_balancer"]


async def test_promises_that_are_not_kept(router: Start) -> None:
    async with engine(blocks=64) as a, router([a]) as running:
        prompts = [f"{n} " + "the same long story about a harbour and a letter " * 6 for n in range(4)]
        for prompt in prompts[:3]:
            await ask(running, prompt)
        await running.hear()
        a.faults(drop_events=1.0)  # removals are lost
        for n in range(6):
            await a_flood(a, n)
        for prompt in prompts[:3]:
            await ask(running, prompt)
        found = named(await look(running, passive=True))
    assert "delivers less than its events promise" in found["routers.targets"]


async def test_a_replay_endpoint_that_does_not_answer_the_router(router: Start) -> None:
    async with engine() as a, router([a], index={"replay_timeout_s": 0.05}) as running:
        (target,) = [instance.targets[0] for instance in running.core.fleet]
        await a_flood(a, 0)
        a.faults(silent_replays=True, drop_events=1.0)
        await a_flood(a, 1)
        a.faults(drop_events=0.0)
        await a_flood(a, 2)
        await eventually(lambda: running.core.indexer.sequencer(target.id).replay_silent)
        found = named(await look(running, passive=True))
        endpoint = a.sources()["0"]["replay_endpoint"]
    assert f"replay requests to {endpoint} are not answered to the router" in found["routers.targets"]


async def a_flood(one: FakeEngine, n: int) -> None:
    """Fill the engine's cache with something else, behind the router's back."""
    async with httpx.AsyncClient(base_url=one.url) as client:
        body = {"model": "warm-tiny", "prompt": f"{n} flood " * 200, "max_tokens": 1}
        await client.post(COMPLETIONS, json=body)


async def test_an_admin_listener_with_tokens(router: Start) -> None:
    tokens = [{"name": "ops", "hash": hashlib.sha256(b"s3cret-of-ops").hexdigest(), "rights": ["read"]}]
    async with engine() as a, router([a], admin={**LOCAL, "tokens": tokens}, wait=False) as running:
        without = named(await look(running))
        await eventually(running.polled)
        with_it = await look(running, token="s3cret-of-ops")
    assert "it wants an admin token" in without["routers.reachable"]
    assert "routers.reachable" not in named(with_it)
    assert with_it.engines == 1


async def test_a_tokenizer_that_the_router_found_wrong(router: Start, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}")
    async with engine(chat_template=str(template)) as a, router([a], wait=False) as running:
        await eventually(lambda: any(r.mismatches for r in running.app.core.tokenization.report().values()))
        found = named(await look(running, passive=True))
    assert "the router found other ids there" in found["tokens.in_use"]
