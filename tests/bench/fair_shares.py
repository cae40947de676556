"""What a greedy tenant costs the others, live: modest ones beside one that always asks for more, on emulated engines.

Three modest tenants each send a request every so often, at random times, together 45 % of what the engines can prefill.
A greedy one keeps ten requests per engine under way. TTFT of the modest ones: alone, then with the greedy one without
and with fair shares (`admission` with the rule `saturation`). Answers are streamed, so the router learns the engines'
speeds; the first part of each run is not counted.

    python -m tests.bench.fair_shares
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from router.app import App
from router.config import schema
from tests.fakes.engines import engine, eventually
from tests.paths import TOKENIZER

MODEL = "warm-tiny"
ENGINES, PREFILL_TOKENS_PER_S, WORDS = 8, 4_000, 200
MODEST, GREEDY = ("modest-0", "modest-1", "modest-2"), "greedy"
MODEST_LOAD = 0.45  # of what the engines can prefill, all modest tenants together
SETTLE_S, MEASURE_S = 10.0, 40.0


async def ask(http: httpx.AsyncClient, tenant: str, number: int) -> tuple[float, int]:
    """Send a prompt of its own. Return the seconds to the first token, and the tokens of the prompt."""
    loop = asyncio.get_running_loop()
    content = " ".join(f"{tenant} {number} {word}" for word in range(WORDS))
    body = {"model": MODEL, "max_tokens": 4, "stream": True, "messages": [{"role": "user", "content": content}]}
    body["stream_options"] = {"include_usage": True}
    headers = {"x-api-key": tenant, "x-session-id": f"{tenant}-{number}"}
    began_s, first_s, tokens = loop.time(), None, 0
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if first_s is None and line.startswith("data:"):
                first_s = loop.time() - began_s
            if '"prompt_tokens":' in line:
                tokens = int(line.partition('"prompt_tokens":')[2].partition(",")[0])
    assert first_s is not None
    return first_s, tokens


async def keep_asking(http: httpx.AsyncClient, numbers: Iterator[int]) -> None:
    while True:
        await ask(http, GREEDY, next(numbers))


async def ask_at_random(http: httpx.AsyncClient, tenant: str, per_s: float, seed: int) -> list[float]:
    """Send requests until `MEASURE_S` are over. Return the TTFT of those sent after `SETTLE_S`, in seconds."""
    loop, rng, asked = asyncio.get_running_loop(), random.Random(seed), list[tuple[float, asyncio.Task[Any]]]()
    began_s = loop.time()
    while (now_s := loop.time() - began_s) < SETTLE_S + MEASURE_S:
        asked.append((now_s, asyncio.create_task(ask(http, tenant, len(asked)))))
        await asyncio.sleep(rng.expovariate(per_s))
    return [(await task)[0] for sent_s, task in asked if sent_s >= SETTLE_S]


async def measure(folder: Path, *, greedy: bool, fair: bool) -> list[float]:
    """Return the TTFT of the modest tenants, in seconds."""
    keys = folder / "keys"
    names = (*MODEST, GREEDY)
    keys.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in names))
    async with AsyncExitStack() as stack:
        speed = {"prefill_tokens_per_s": PREFILL_TOKENS_PER_S, "decode_ms_per_token": 5}
        engines = [await stack.enter_async_context(engine(blocks=20_000, **speed)) for _ in range(ENGINES)]
        config: dict[str, Any] = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"port": 0},
            "fleet": {"instances": [{"url": one.url} for one in engines]},
            "tokenizers": {MODEL: {"path": TOKENIZER}},
            "clients": {"keys_file": str(keys)},
            "admission": {"enabled": fair, "rule": {"name": "saturation"}},
        }
        app = App(schema.Config.model_validate(config))
        await app.start()
        stack.push_async_callback(app.stop)
        await eventually(app.knows_engines)
        limits = httpx.Limits(max_connections=None)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.port}", timeout=120.0, limits=limits)
        )
        _, tokens = await ask(http, MODEST[0], 1_000_000)
        per_s = MODEST_LOAD / len(MODEST) * ENGINES * PREFILL_TOKENS_PER_S / tokens
        numbers, flood = count(), list[asyncio.Task[None]]()
        if greedy:
            flood = [asyncio.create_task(keep_asking(http, numbers)) for _ in range(10 * ENGINES)]
        found = await asyncio.gather(*(ask_at_random(http, name, per_s, seed) for seed, name in enumerate(MODEST)))
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    return [ttft_s for some in found for ttft_s in some]


async def main() -> None:
    print(f"{ENGINES} engines of {PREFILL_TOKENS_PER_S} tokens/s; TTFT of the modest tenants, ms")
    with tempfile.TemporaryDirectory() as folder:
        for name, greedy, fair in (("alone", False, False), ("unfair", True, False), ("fair", True, True)):
            found = await measure(Path(folder), greedy=greedy, fair=fair)
            cuts = quantiles(found, n=10)
            print(f"{name:7} p50 {cuts[4] * 1e3:6.0f}  p90 {cuts[8] * 1e3:6.0f}  of {len(found)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
