"""Many requests to the admin listener: guessed tokens, absurd parameters, large explanations, viewers of the page."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter

from router.control.api.records import EXPLAINED_AT_ONCE
from router.control.live.feed import MAX_VIEWERS
from tests.abuse.bodies import text_chat
from tests.abuse.conftest import Measured
from tests.abuse.raw import BENIGN, CHAT, MB, RawClient, chat, cut_off, dial, dialled
from tests.abuse.watch import open_files
from tests.fakes.engines import engine, eventually

GUESSES = 1_000
LONGEST_ANSWER = 2_000  # bytes
VIEWERS = 40
EXPLAIN = "/admin/explain?path=/v1/chat/completions"
LONG = "9" * 5_000
PARAMETERS = (
    *(f"/admin/records?{name}={LONG}" for name in ("limit", "id", "session", "since", "until", "status", "error")),
    "/admin/records?since=-1e400",
    "/admin/records?since=9999-99-99",
    "/admin/records?limit=0",
    f"/admin/records/{LONG}",
    f"/admin/audit?limit={LONG}",
    f"/admin/policies/{LONG}",
    f"/admin/poison/{LONG}",
    f"/admin/{LONG}",
    f"/admin/live/{LONG}",
)


def get(path: str, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in ("host: 127.0.0.1", *headers))
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


def explain(length: int) -> bytes:
    """The head of a request to explain a body of this length."""
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


async def ask(client: RawClient) -> tuple[int, bytes]:
    """Let a chat be explained; return the status and body of the answer."""
    client.send(explain(len(CHAT)) + CHAT)
    return await client.answer()


async def status_of(client: RawClient) -> int:
    """Return the status of an answer of which the head has come; the rest is left."""
    async with asyncio.timeout(10):
        return int((await client.reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])


async def test_guesses_of_an_admin_token_leave_nothing(router_process, fleet_config, measured: Measured) -> None:
    tokens = [{"name": "a", "hash": hashlib.sha256(b"token").hexdigest(), "rights": ["read", "write"]}]
    config = {"admin": {"tokens": tokens, "host": "127.0.0.1", "port": 0}}
    async with (
        engine() as fake,
        router_process(fleet_config([fake], **config)) as r,
        dialled(r.admin_url, 1) as (client,),
    ):
        before, logged, statuses = r.rss_bytes, len(r.log), Counter[int]()
        for number in range(GUESSES):
            client.send(get("/admin/instances", f"authorization: Bearer guess-{number}"))
            statuses[(await client.answer())[0]] += 1
        assert statuses == {401: GUESSES}
        measured(f"{GUESSES:,} guessed admin tokens: memory", (r.rss_bytes - before) / MB, 4, "MB")
        measured(f"{GUESSES:,} guessed admin tokens: log", len(r.log) - logged, 0, "bytes")


async def test_absurd_parameters_get_short_refusals(router, measured: Measured) -> None:
    async with engine() as fake, router([fake]) as r, dialled(r.admin_url, 1) as (client,):
        longest = 0
        for path in PARAMETERS:
            client.send(get(path))
            status, body = await client.answer()
            assert status in (404, 405, 422), (path[:50], status)
            longest = max(longest, len(body))
        measured("admin parameters of 5,000 digits: longest answer", longest, LONGEST_ANSWER, "bytes")


async def test_few_bodies_are_explained_at_once(router) -> None:
    """Each may take several times `limits.body_bytes`, and no client's share of the bytes holds for operators."""
    body = text_chat("hello").raw
    async with engine() as fake, router([fake]) as r, dialled(r.admin_url, EXPLAINED_AT_ONCE + 1) as clients:
        *slow, late = clients
        for client in slow:
            client.send(explain(len(body)) + body[:-1])
        async with asyncio.timeout(10):
            while (answer := await ask(late))[0] == 200:  # until the heads of the others are read
                pass
        assert answer[0] == 429
        assert b"too_many_explained" in answer[1]
        for client in slow:
            client.send(body[-1:])
            assert (await client.answer())[0] == 200
        assert (await ask(late))[0] == 200


async def test_viewers_beyond_the_bound_are_refused_and_leave_nothing(
    router_process, fleet_config, measured: Measured
) -> None:
    """None of them reads."""
    async with engine() as fake, router_process(fleet_config([fake])) as r:
        before, files = r.rss_bytes, open_files(r.pid)
        async with cut_off() as clients:
            for _ in range(VIEWERS):
                clients.append(client := await dial(r.admin_url, buffered=False))
                client.send(get("/admin/live"))
            statuses = Counter([await status_of(client) for client in clients])
            assert statuses == {200: MAX_VIEWERS, 429: VIEWERS - MAX_VIEWERS}
            for client in clients:
                client.stop_reading()
            assert await chat(r.url) == 200
            measured(f"{VIEWERS} viewers of the live page: memory", (r.rss_bytes - before) / MB, 16, "MB")
        await eventually(lambda: open_files(r.pid) <= files + 1)
        async with dialled(r.admin_url, 1, BENIGN) as (client,):
            client.send(get("/admin/live"))
            assert await status_of(client) == 200
