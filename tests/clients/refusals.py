"""A router that has a reason for every refusal, and the requests that get them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.fakes.engines import FakeEngine, engine

KEY, POOR_KEY = "key-of-rich", "key-of-poor"
LARGEST_BODY = 90_000  # more than agents send by themselves
TOO_LONG = "long " * 20_000  # still fits one argument of a command
WAIT_S = 1.0
REFUSED_WITHIN_S = 60.0


class Case(NamedTuple):
    status: int
    says: str | None  # part of the router's message; None: the engine's own words, unchanged
    model: str = "warm-tiny"
    key: str = KEY
    text: str = "hello"
    retry_after: bool = False  # the header
    words: str = ""  # of the engine, in part


CASES = {
    "too_many_tokens": Case(400, None, "warm-short", text="one two three " * 50, words="maximum context length"),
    "wrong_key": Case(401, "a valid API key", key="nobody"),
    "unknown_model": Case(404, "`who` does not exist", "who"),
    "large_body": Case(413, "larger than the limit", text=TOO_LONG),
    "limit_reached": Case(429, "`concurrent` is reached", key=POOR_KEY, retry_after=True),
    "engine_dies": Case(502, "engine", "warm-dying"),
    "engine_full": Case(503, None, "warm-full", words="The engine takes no requests"),
    "engine_gone": Case(503, "no engine", "warm-gone", retry_after=True),
    "engine_slow": Case(504, "engine", "warm-slow"),
}


class StrictRouter:
    """The running router, its engines by model, and the request that uses up the limit of `POOR_KEY`."""

    def __init__(self, router: Any, engines: dict[str, FakeEngine], used_up: AsyncExitStack) -> None:
        self.router = router
        self.url: str = router.url
        self.engines = engines
        self._used_up = used_up

    async def relax_after(self, count: int) -> None:
        """After `count` more refusals, end what can end by itself: the full engine has room, the limit is not
        reached.
        """
        enough = await self._refusals() + count
        async with asyncio.timeout(REFUSED_WITHIN_S):
            while await self._refusals() < enough:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        self.engines["warm-full"].faults(refuse=False)
        await self._used_up.aclose()

    async def _refusals(self) -> float:
        by_limit = await self.router.metric("warmroute_tenant_refusals_total", tenant="poor")
        return float(by_limit + len(self.engines["warm-full"].seen("/v1/chat/completions")))

    async def tighten(self) -> None:
        """Undo `relax_after`."""
        self.engines["warm-full"].faults(refuse=True)
        endless = {"model": "warm-slow", "input": "hello", "stream": True}  # begins at once, has no first token
        request = self.router.http.stream(
            "POST", "/v1/responses", json=endless, headers={"authorization": f"Bearer {POOR_KEY}"}
        )
        assert (await self._used_up.enter_async_context(request)).status_code == 200


@asynccontextmanager
async def strict_router(start_router: Any, folder: Path) -> AsyncIterator[StrictRouter]:
    """`start_router` is the fixture `router_of_module`; `folder` gets the file of keys."""
    config = {
        "clients": {
            "keys_file": keys_file(folder, "rich", "poor"),
            "tenants": {"poor": {"service_class": "small"}},
            "service_classes": {"small": {"limits": {"concurrent": 1}}},
        },
        "limits": {"body_bytes": LARGEST_BODY, "first_byte_timeout_s": WAIT_S, "idle_timeout_s": 3600.0},
        "fleet": {"health": {"failures": 1_000_000}, "breaker": {"failures": 1_000_000}},
    }
    async with AsyncExitStack() as stack, AsyncExitStack() as gone, AsyncExitStack() as used_up:
        options: dict[str, dict[str, Any]] = {
            "warm-tiny": {"blocks": 16384, "max_model_len": 262_144},
            "warm-short": {"max_model_len": 64},
            "warm-dying": {},
            "warm-full": {"blocks": 16384, "max_model_len": 262_144},
            "warm-slow": {"decode_ms_per_token": 600_000, "blocks": 16384, "max_model_len": 262_144},
        }
        engines = {
            model: await stack.enter_async_context(engine(model=model, **more)) for model, more in options.items()
        }
        leaving = await gone.enter_async_context(engine(model="warm-gone"))
        router = await stack.enter_async_context(start_router([*engines.values(), leaving], **config))
        await gone.aclose()
        engines["warm-dying"].faults(die_before_first_byte=1.0)
        strict = StrictRouter(router, engines, used_up)
        await strict.tighten()
        yield strict


def keys_file(folder: Path, *tenants: str) -> str:
    """Write the keys `key-of-NAME` of these tenants and return the file's name."""
    file = folder / "keys"
    file.write_text("".join(f"{hashlib.sha256(f'key-of-{name}'.encode()).hexdigest()} {name}\n" for name in tenants))
    return str(file)
