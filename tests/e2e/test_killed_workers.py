"""Four workers and a second router under a mixed load: each worker is killed in turn, and the router is cut off."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest

from router.control.peers.experiments import COUNTS_S
from router.lab.local_stack.preflight import free_ports
from tests.e2e.chats import PATH, Said
from tests.e2e.conftest import MODEL, Json, RouterProcess
from tests.e2e.workers import all_up, nothing_under_way, until
from tests.fakes.engines import engine
from tests.patience import PATIENCE_S

WORKERS = 4
SLOW = {"decode_ms_per_token": 10}
SESSIONS = 12
CUT_OFF_S = 10.0
SECRET = {"WARMROUTE_TEST_PEERS": "0123456789abcdef" * 2}
STICKY = {"scorers": [{"name": "session_affinity"}]}
KEYS = {"k": "acme", "f": "free"}


class Talks:
    """Sessions that go on until they are stopped, every turn on a connection of its own, half of them streams."""

    def __init__(self, r: RouterProcess) -> None:
        self._r = r
        self._stopped = False
        self.answered = 0
        self.cut = 0  # turns whose connection ended
        self.refused: list[Said] = []
        self.targets: dict[str, list[str]] = defaultdict(list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(SESSIONS):
                group.create_task(self._talk(f"session {number}", "kf"[number % 2], stream=number % 3 == 0))
            try:
                yield
            finally:
                self._stopped = True

    async def _talk(self, session: str, key: str, *, stream: bool) -> None:
        for turn in count():
            if self._stopped:
                return
            headers = {"x-session-id": session, "authorization": f"Bearer {key}"}
            text = f"{session} " * 20 + f"turn {turn}"
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "stream": stream}
            try:
                async with self._r.client() as client:
                    answer = await client.post(PATH, json=body, headers=headers)
            except httpx.TransportError:
                self.cut += 1
                continue
            if answer.status_code != 200 or (stream and not answer.text.rstrip().endswith("[DONE]")):
                self.refused.append(Said(answer.status_code, answer.text, stream, None, answer.headers))
                continue
            self.answered += 1
            self.targets[session].append(answer.headers["x-warmroute-target"])

    async def more(self, turns: int = 3 * SESSIONS) -> None:
        """Wait until so many more turns are answered."""
        wanted = self.answered + turns
        await until(lambda: self.answered >= wanted)


async def on_duty(r: RouterProcess, but: int) -> bool:
    """Another process than `but` has the duties, and serves the admin API."""
    found = (await r.admin.get("/admin/workers")).raise_for_status().json()["workers"]
    return any(one["on_duty"] and one["pid"] not in (None, but) for one in found)


async def counted(r: RouterProcess) -> int:
    report = (await r.admin.get("/admin/experiment")).raise_for_status().json()["report"]
    return sum(int(arm["requests"]) for arm in report["arms"])


async def heard(r: RouterProcess, up: bool) -> bool:
    replicas = (await r.admin.get("/admin/replicas")).raise_for_status().json()["replicas"]
    return [one["up"] for one in replicas if not one["own"]] == [up]


@pytest.mark.rollout
async def test_each_worker_is_killed_and_a_router_is_cut_off(router_process, fleet_config, tmp_path: Path) -> None:
    """Only requests of killed workers are lost, sessions stay where they are, the duties move, and the books are empty
    at the end; also at the other router, which is stopped for ten seconds.
    """
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{hashlib.sha256(key.encode()).hexdigest()} {name}\n" for key, name in KEYS.items()))
    ports = free_ports(2)
    shared: Json = {
        "policies": {"warm": STICKY, "other": STICKY},
        "experiment": {"arms": {"warm": 50, "other": 50}, "unit": "session"},
        "admission": {"enabled": True, "rule": {"name": "concurrency", "per_target": 100}},
        "clients": {
            "keys_file": str(keys),
            "tenants": {"acme": {"service_class": "small"}},
            "service_classes": {"small": {"limits": {"concurrent": 1_000, "tokens_per_minute": 100_000_000}}},
        },
    }
    peers = {"peers": [f"127.0.0.1:{port}" for port in ports], "secret_env": "WARMROUTE_TEST_PEERS"}
    async with engine(**SLOW) as a, engine(**SLOW) as b, engine(**SLOW) as c:
        one, other = (
            fleet_config([a, b, c], workers=n, replicas=peers | {"host": "127.0.0.1", "port": port}, **shared)
            for n, port in zip((WORKERS, 1), ports, strict=True)
        )
        async with router_process(one, env=SECRET) as r, router_process(other, env=SECRET) as beside:
            workers = await all_up(r)
            assert [worker["on_duty"] for worker in workers] == [True, False, False, False]
            await until(lambda: heard(r, up=True))
            talks = Talks(r)
            async with talks.running():
                await talks.more()
                for worker in workers:
                    cut = talks.cut
                    os.kill(worker["pid"], signal.SIGKILL)
                    await until(lambda pid=worker["pid"]: on_duty(r, but=pid))
                    await talks.more()
                    await all_up(r, but=[worker["pid"]])
                    await talks.more()
                    assert talks.cut - cut <= SESSIONS
                beside.process.send_signal(signal.SIGSTOP)
                await until(lambda: heard(r, up=False))
                await talks.more()
                await asyncio.sleep(CUT_OFF_S)  # it is as long as that, whatever the machine
                beside.process.send_signal(signal.SIGCONT)
                await until(lambda: heard(r, up=True))
                await until(lambda: heard(beside, up=True))
                await talks.more()
            assert talks.refused == []
            assert {session: len(set(targets)) for session, targets in talks.targets.items()} == dict.fromkeys(
                talks.targets, 1
            )
            await until(lambda: nothing_under_way(r))
            await until(lambda: nothing_under_way(beside))
            before = await settled_count(r, beside)
            assert before >= talks.answered * 0.9  # what a killed worker had not published, a second at most, is lost
            after = Talks(r)
            async with after.running():
                await after.more()
            await until(lambda: nothing_under_way(r))
            await until(lambda: is_counted(r, before + after.answered))
            await until(lambda: is_counted(beside, before + after.answered))


async def settled_count(r: RouterProcess, beside: RouterProcess) -> int:
    """What both routers have counted, once that has not changed for longer than counts are on their way."""
    async with asyncio.timeout(PATIENCE_S):
        same, last = 0, -1
        while same < 20:
            one, other = await counted(r), await counted(beside)
            same, last = (same + 1 if one == other == last else 0), one
            await asyncio.sleep(COUNTS_S / 10)
    return last


async def is_counted(r: RouterProcess, requests: int) -> bool:
    return await counted(r) == requests
