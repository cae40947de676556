"""The simulated master: the real one's shapes, and a process that ends with its parent."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator

import httpx
import pytest

from router.lab.emulator.mooncake_master import MasterOptions, MooncakeMaster
from tests.paths import ROOT
from tests.patience import PATIENCE_S

KEY = "Small-1B@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@00ff"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with MooncakeMaster(MasterOptions()) as master, httpx.AsyncClient(base_url=master.url) as client:
        yield client


async def query(http: httpx.AsyncClient, *keys: str) -> dict[str, dict[str, object]]:
    answer = await http.get("/batch_query_keys", params={"keys": ",".join(keys)})
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    data: dict[str, dict[str, object]] = answer.json()["data"]
    return data


async def test_what_was_put_is_told_in_the_shape_of_the_real_one(http: httpx.AsyncClient) -> None:
    await http.post("/emulate/put", json={"keys": [KEY]})
    await http.post("/emulate/put", json={"keys": ["on disk"], "tier": "disk"})
    data = await query(http, KEY, "on disk", "nowhere")
    fields = {"ok", "error", "values", "disk_values", "local_disk_values", "nof_values"}
    assert [set(one) for one in data.values()] == [fields] * 3
    assert (data[KEY]["ok"], bool(data[KEY]["values"]), data[KEY]["local_disk_values"]) == (True, True, None)
    assert (data["on disk"]["ok"], data["on disk"]["values"]) == (True, [])
    assert data["on disk"]["local_disk_values"]
    assert (data["nowhere"]["ok"], data["nowhere"]["error"]) == (False, "OBJECT_NOT_FOUND")
    assert (await http.get("/get_all_keys")).text.split("\n") == [KEY, "on disk", ""]
    assert "\nmaster_key_count 2\n" in (await http.get("/metrics")).text


async def test_what_was_removed_is_gone(http: httpx.AsyncClient) -> None:
    await http.post("/emulate/put", json={"keys": ["a", "b", "c"]})
    await http.post("/emulate/remove", json={"keys": ["a", "never there"]})
    assert [one["ok"] for one in (await query(http, "a", "b", "c")).values()] == [False, True, True]
    await http.post("/emulate/remove", json={})
    assert (await http.get("/get_all_keys")).text == ""


async def test_it_leads_unless_it_stands_by(http: httpx.AsyncClient) -> None:
    health = (await http.get("/health")).json()
    assert (health["role"], health["service_ready"]) == ("leader", True)
    assert (await http.get("/role")).text == "leader"
    assert (await http.get("/leader")).json()["present"] is False
    await http.post("/emulate/faults", json={"standby": True})
    health = (await http.get("/health")).json()
    assert (health["role"], health["service_ready"]) == ("standby", False)
    answer = await http.get("/batch_query_keys", params={"keys": KEY})
    assert (answer.status_code, answer.json()["success"]) == (503, False)
    assert (await http.get("/get_all_keys")).status_code == 503


async def test_faults_spare_its_own_paths(http: httpx.AsyncClient) -> None:
    await http.post("/emulate/faults", json={"error": True})
    assert (await http.get("/health")).status_code == 500
    await http.post("/emulate/faults", json={"error": False, "silent": True})
    with pytest.raises(httpx.ReadTimeout):
        await http.get("/health", timeout=httpx.Timeout(5.0, read=0.05))  # connecting may take longer
    await http.post("/emulate/faults", json={"silent": False, "slow_ms": 60})
    assert (await http.get("/health")).elapsed.total_seconds() >= 0.06


@pytest.mark.parametrize(("path", "body"), [("/emulate/faults", '{"slient": true}'), ("/emulate/put", '{"key": []}')])
async def test_a_mistake_is_refused(http: httpx.AsyncClient, path: str, body: str) -> None:
    assert (await http.post(path, content=body)).status_code == 400


async def test_questions_that_the_real_one_refuses(http: httpx.AsyncClient) -> None:
    assert (await http.get("/batch_query_keys")).status_code == 400
    assert (await http.post("/batch_query_keys", json={"keys": [KEY]})).status_code == 404


async def test_as_a_process_it_says_where_it_is_and_ends_when_told() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.lab.emulator.mooncake_master", "{}"),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        facts = json.loads(await process.stdout.readline())
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{facts['url']}/role")).text == "leader"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_as_a_process_it_refuses_options_it_does_not_know() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.lab.emulator.mooncake_master", '{"prot": 1}'),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert "prot" in errors.decode()
