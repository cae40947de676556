"""Fair shares, live: a tenant that floods an engine leaves the others theirs; a deadline that is lost is said early."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, Json, Router
from tests.fakes.engines import engine, eventually
from tests.patience import PATIENCE_S

SLOW: Json = {"block_tokens": 16, "blocks": 4000, "prefill_tokens_per_s": 4_000, "decode_ms_per_token": 0}
ON: Json = {"enabled": True, "rule": {"name": "saturation"}}


def keys(folder: Path, tenants: Sequence[str]) -> Json:
    """Every tenant's key is its name; `heavy` has four times the weight, and its priority is capped."""
    file = folder / "keys"
    file.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in tenants))
    classes = {"gold": {"weight": 4.0, "highest_priority": 0}}
    return {"keys_file": str(file), "tenants": {"heavy": {"service_class": "gold"}}, "service_classes": classes}


async def asks(r: Router, tenant: str, number: int, words: int = 100, **headers: str) -> tuple[int, Json, float]:
    """Send one request of its own prompt. Return status, body and seconds."""
    began_s = asyncio.get_running_loop().time()
    content = " ".join(f"{tenant} {number} {word}" for word in range(words))
    body = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": content}]}
    sent = {"authorization": f"Bearer {tenant}", "x-session-id": f"{tenant}-{number}"} | headers
    answer = await r.http.post(PATH, json=body, headers=sent)
    return answer.status_code, answer.json(), asyncio.get_running_loop().time() - began_s


async def until_it_waits(r: Router) -> None:
    """Return when a request waits for the engine."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(one["waiting"] for one in (await r.admin.get("/admin/admission")).json()["models"]):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_a_greedy_tenant_waits_for_itself_and_a_modest_one_does_not(router: Any, tmp_path: Path) -> None:
    clients = keys(tmp_path, ["greedy", "modest"])
    async with engine(**SLOW) as a, router([a], admission=ON, clients=clients) as r:
        flood = [asyncio.create_task(asks(r, "greedy", number)) for number in range(30)]
        await until_it_waits(r)
        (shown,) = (await r.admin.get("/admin/admission")).json()["models"]
        (greedy,) = shown["tenants"]
        assert (greedy["tenant"], greedy["weight"]) == ("greedy", 1.0)
        assert greedy["waiting"] > 0
        modest = [await asks(r, "modest", number) for number in range(3)]
        flooded = await asyncio.gather(*flood)
        assert {status for status, _, _ in [*modest, *flooded]} == {200}
        assert fmean(s for _, _, s in modest) < fmean(s for _, _, s in flooded) / 2
        shown = (await r.admin.get("/admin/admission")).json()
        assert shown["models"][0]["waiting"] == []
        await eventually(r.idle)


async def test_what_would_miss_its_deadline_is_refused_and_not_computed(router: Any, tmp_path: Path) -> None:
    clients = keys(tmp_path, ["greedy", "modest"])
    async with engine(**SLOW) as a, router([a], admission=ON, clients=clients) as r:
        flood = [asyncio.create_task(asks(r, "greedy", number, 400)) for number in range(6)]
        await until_it_waits(r)
        status, body, _ = await asks(r, "modest", 1, **{"x-slo-ttft-ms": "1"})
        assert (status, body["error"]["code"]) == (429, "deadline_unreachable")
        assert {status for status, _, _ in await asyncio.gather(*flood)} == {200}
        await eventually(r.idle)


async def test_what_waited_goes_to_the_engine_with_room_and_its_record_says_which_had_none(
    router: Any, tmp_path: Path
) -> None:
    clients = keys(tmp_path, ["greedy", "modest"])
    async with engine(**SLOW) as a, engine(**SLOW) as b, router([a, b], admission=ON, clients=clients) as r:
        flood = [asyncio.create_task(asks(r, "greedy", number, 400)) for number in range(12)]
        await until_it_waits(r)
        assert {status for status, _, _ in await asyncio.gather(*flood)} == {200}
        records = (await r.admin.get("/admin/records")).json()["records"]
        waited = [record for record in records if record["stages"]["admission_ms"] is not None]
        assert waited
        for record in waited:
            (attempt,) = record["attempts"]
            assert attempt["target"] not in record["full_targets"]
        assert any(record["full_targets"] for record in waited)
