"""What keeping tenants apart costs in hits: the same chats with and without `clients.isolation`, on emulated engines.

Tenants share a system prompt, which each of them computes once per engine where caches are kept apart; everything else
is a session's own in both cases. Counts tokens, so the machine's load does not matter.

    python -m tests.bench.isolation
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx

from router.app import App
from router.config import schema
from tests.fakes.engines import engine, eventually
from tests.paths import TOKENIZER

MODEL = "warm-tiny"
ENGINES, SESSIONS, TURNS = 4, 6, 4  # sessions per tenant
SHARED_WORDS, TURN_WORDS = 1000, 150


class Hits(NamedTuple):
    cached_tokens: int
    prompt_tokens: int

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def words(count: int, start: str) -> str:
    return " ".join(f"{start}{number}" for number in range(count))


async def chat(http: httpx.AsyncClient, tenant: str, session: int) -> Hits:
    """Return the hits of one session of a tenant."""
    messages = [{"role": "system", "content": words(SHARED_WORDS, "rule ")}]
    cached = prompt = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(TURN_WORDS, f"{tenant} {session} {turn} ")})
        body = {"model": MODEL, "messages": messages, "max_tokens": 16}
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-api-key": tenant})
        found = answer.raise_for_status().json()
        messages.append(found["choices"][0]["message"])
        cached += found["usage"]["prompt_tokens_details"]["cached_tokens"]
        prompt += found["usage"]["prompt_tokens"]
    return Hits(cached, prompt)


async def measure(tenants: int, isolation: Literal["off", "tenant"], folder: Path) -> Hits:
    """Return the hits of all tenants: each has one session after the other, and all of them at the same time."""
    names = [f"tenant-{number}" for number in range(tenants)]
    keys = folder / "keys"
    keys.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in names))
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(blocks=100_000)) for _ in range(ENGINES)]
        config: dict[str, Any] = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"port": 0},
            "fleet": {"instances": [{"url": one.url} for one in engines]},
            "tokenizers": {MODEL: {"path": TOKENIZER}},
            "clients": {"keys_file": str(keys), "isolation": isolation},
        }
        app = App(schema.Config.model_validate(config))
        await app.start()
        stack.push_async_callback(app.stop)
        await eventually(app.knows_engines)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.port}"))
        found = [
            hits
            for session in range(SESSIONS)
            for hits in await asyncio.gather(*(chat(http, name, session) for name in names))
        ]
    return Hits(sum(one.cached_tokens for one in found), sum(one.prompt_tokens for one in found))


async def main() -> None:
    print(f"{ENGINES} engines, {SESSIONS} sessions a tenant of {TURNS} turns; hits, % of prompt tokens")
    with tempfile.TemporaryDirectory() as folder:
        for tenants in (2, 8, 32):
            off, on = [await measure(tenants, mode, Path(folder)) for mode in ("off", "tenant")]
            print(f"{tenants:3} tenants: off {100 * off.share:5.1f}, tenant {100 * on.share:5.1f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
