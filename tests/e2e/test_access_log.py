"""The access line of a request, as its own process writes it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine, eventually
from tests.fakes.otlp import receiver

CHAT = "/v1/chat/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4, **fields}


async def test_an_answered_and_a_refused_request(router: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warmroute.access")
    with receiver() as traces:
        async with engine(name="a") as fake, router(
            [fake], log={"access": True}, tracing={"endpoint": traces.url, "sample_ratio": 1}
        ) as r:  # fmt: skip
            record = await r.record(await r.post(CHAT, chat()))
            await r.post(CHAT, chat(model='x" status=200'))
            await r.post("/v1/nothing here", {})
    told = [line for line in caplog.records if line.name == "warmroute.access"]
    fields = [line.fields for line in told]  # type: ignore[attr-defined]
    assert fields[0] == {
        "path": CHAT,
        "status": 200,
        "model": MODEL,
        "client": "127.0.0.1",
        "target": record["target"],
        "policy": "warm",
        "attempts": 1,
        "stream": False,
        "ttft_ms": pytest.approx(record["ttft_ms"], abs=0.001),
        "duration_ms": pytest.approx(record["duration_ms"], abs=0.001),
        "prompt_tokens": record["prompt_tokens"],
        "cached_tokens": record["cached_tokens"],
        "output_tokens": record["output_tokens"],
        "record": record["id"],
        "trace": record["trace_id"],
    }
    assert told[0].getMessage().startswith(f"path={CHAT} status=200 model={MODEL} client=127.0.0.1 target=")
    assert fields[1] == {"path": CHAT, "status": 404, "error": "model_not_found", "client": "127.0.0.1"}
    assert (fields[2]["status"], fields[2]["error"]) == (404, "unknown_path")
    assert len(told[2].getMessage().split(" ")) == 4 or '"' in told[2].getMessage()


async def test_a_json_log_of_a_process(router_process: Any, fleet_config: Any) -> None:
    async with engine() as fake:
        config = fleet_config([fake], log={"access": True, "format": "json", "level": "info"})
        async with router_process(config) as r:
            answer = await r.post(CHAT, chat())
            await eventually(lambda: b"warmroute.access" in r.log and r.log.endswith(b"\n"))
            lines = [json.loads(line) for line in r.log.decode().splitlines()]
    (access,) = (line for line in lines if line["logger"] == "warmroute.access")
    assert (access["record"], access["status"]) == (answer.headers["x-warmroute-record"], 200)
    assert any(line["message"].startswith("listening on ") for line in lines)


async def test_no_line_unless_asked_for(router: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warmroute.access")
    async with engine() as fake, router([fake]) as r:
        await r.post(CHAT, chat())
        await r.post("/v1/nothing", {})
    assert [line for line in caplog.records if line.name == "warmroute.access"] == []
