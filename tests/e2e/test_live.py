"""The live page's feed over real sockets: a whole picture, then what changed; nothing while nobody looks."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.control.api import live
from router.control.live.feed import MAX_UNSENT, MAX_VIEWERS, Viewer
from tests.e2e.conftest import MODEL, Json, RouterClient
from tests.e2e.workers import Clients, all_up, say
from tests.fakes.engines import engine, eventually
from tests.files import replace
from tests.patience import PATIENCE_S


class Feed:
    """One viewer: the events as they come, and the picture that they add up to."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.targets: dict[str, Json] = {}
        self.router: Json = {}
        self.buckets: dict[tuple[int, str], list[Any]] = {}
        self.marks: list[Json] = []

    async def next(self) -> tuple[str, Json]:
        name = data = ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
            elif name:
                break
        event = json.loads(data)
        self._apply(event)
        return name, event

    def _apply(self, event: Json) -> None:
        for id, change in event.get("targets", {}).items():
            if change is None:
                del self.targets[id]
            else:
                self.targets.setdefault(id, {}).update(change)
        self.router |= event.get("router", {})
        for bucket in event.get("flow", {}).get("buckets", ()):
            self.buckets[bucket[0], bucket[1]] = bucket
        self.marks += event.get("marks", ())

    async def until(self, condition: Any, within_s: float = PATIENCE_S) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await self.next()


@asynccontextmanager
async def feed_of(router: RouterClient, **headers: str) -> AsyncIterator[Feed]:
    async with router.admin.stream("GET", "/admin/live", headers=headers) as answer:
        answer.raise_for_status()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield Feed(answer.aiter_lines())


async def test_a_whole_picture_then_what_changed(router) -> None:
    async with engine() as a, engine() as b, router([a, b]) as r:
        await say(r.http, "before anybody looked")
        async with feed_of(r) as feed:
            assert await feed.next() == ("hello", {"rights": ["read", "write"]})
            name, full = await feed.next()
            assert name == "full"
            assert full["targets"].keys() == {f"{a.address}/0", f"{b.address}/0"}
            cell = full["targets"][f"{a.address}/0"]
            assert (cell["state"], cell["breaker"], cell["stream"], cell["model"]) == ("ready", "closed", "live", MODEL)
            assert sum(bucket[2] for bucket in feed.buckets.values()) == 1
            await r.admin.post(f"/admin/instances/{a.address}/drain")
            name, delta = await feed.next()
            assert name == "delta"
            assert delta["targets"][f"{a.address}/0"].items() >= {"state": "drained", "drained": True}.items()
            assert "model" not in delta["targets"][f"{a.address}/0"], "only what changed is sent"
            await feed.until(lambda: any(mark["kind"] == "state" for mark in feed.marks))


async def test_switches_joins_and_leaves_are_marked(router, tmp_path: Path) -> None:
    policies = {"warm": {"scorers": [{"name": "prefix_overlap"}]}, "random": {"scorers": [{"name": "random"}]}}
    listed = tmp_path / "fleet.yaml"
    async with engine() as a, engine() as b:
        listed.write_text(json.dumps([{"url": a.url}]))
        fleet = {"file": str(listed), "file_poll_s": 0.02, "instances": []}
        async with router(fleet=fleet, policies=policies) as r, feed_of(r) as feed:
            await feed.until(lambda: f"{a.address}/0" in feed.targets)
            await r.admin.post("/admin/activate", json={"policy": "random"})
            await feed.until(lambda: feed.router["policies"]["active"] == "random")
            assert [mark["kind"] for mark in feed.marks if "instance" not in mark] == ["start", "switch"]
            replace(listed, json.dumps([{"url": b.url}]))
            await feed.until(lambda: feed.targets.keys() == {f"{b.address}/0"})
            moves = [(mark["kind"], mark["instance"]) for mark in feed.marks if "instance" in mark]
            assert ("join", b.address) in moves
            assert ("leave", a.address) in moves


async def test_nothing_runs_and_nothing_is_kept_while_nobody_looks(router) -> None:
    async with engine() as a, router([a]) as r:
        feed = r.app.live
        assert not feed.composing
        async with feed_of(r) as first, feed_of(r) as second:
            await first.until(lambda: first.targets)
            await second.until(lambda: second.targets)
            assert feed.composing
        await eventually(lambda: not feed.composing)
        assert not feed._viewers


async def test_one_viewer_too_many(router) -> None:
    async with engine() as a, router([a]) as r:
        viewers = [r.app.live.join() for _ in range(MAX_VIEWERS)]
        answer = await r.admin.get("/admin/live")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_viewers")
        for viewer in viewers:
            r.app.live.leave(viewer)
        async with feed_of(r) as feed:
            await feed.until(lambda: feed.targets)


async def test_a_viewer_that_does_not_read_is_dropped() -> None:
    viewer = Viewer()
    for _ in range(MAX_UNSENT + 1):
        viewer.put(b"x")
    async with asyncio.timeout(PATIENCE_S):
        assert [message async for message in viewer] == []


async def test_a_viewer_whose_connection_is_full_is_given_up(router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WRITE_TIMEOUT_S", 0.05)
    async with engine() as a, router([a]) as r:
        never = asyncio.Event()
        sent: list[str] = []

        async def receive() -> Json:
            await never.wait()
            return {"type": "http.disconnect"}

        async def send(message: Json) -> None:
            sent.append(message["type"])
            if len(sent) > 1:
                await never.wait()

        async with asyncio.timeout(PATIENCE_S):
            await live.LiveResponse(r.app.live, b"hello")({}, receive, send)
        assert sent == ["http.response.start", "http.response.body"]
        await eventually(lambda: not r.app.live.composing)


async def test_reading_needs_the_right_and_says_which_there_are(router) -> None:
    def token(name: str, *rights: str) -> Json:
        return {"name": name, "hash": hashlib.sha256(name.encode()).hexdigest(), "rights": list(rights)}

    tokens = [token("eye", "read"), token("hand", "read", "write"), token("deaf", "override")]
    admin = {"host": "127.0.0.1", "port": 0, "tokens": tokens}
    async with engine() as a, router([a], admin=admin, wait=False) as r:
        for path in ("/admin/live", f"/admin/live/target?id={a.address}/0"):
            assert (await r.admin.get(path)).status_code == 401
            assert (await r.admin.get(path, headers={"authorization": "Bearer deaf"})).status_code == 403
        assert (await r.admin.get("/")).status_code == 200, "the page itself holds no data"
        for name, rights in (("eye", ["read"]), ("hand", ["read", "write"])):
            async with feed_of(r, authorization=f"Bearer {name}") as feed:
                assert await feed.next() == ("hello", {"rights": rights})


async def test_all_workers_requests_are_in_the_flow(router_process, fleet_config) -> None:
    async with engine() as a, router_process(fleet_config([a], workers=2)) as r:
        await all_up(r)
        async with Clients(r) as clients, feed_of(r) as feed:
            await feed.until(lambda: feed.targets)
            before = sum(bucket[2] for bucket in feed.buckets.values())
            for client in clients.each:
                await say(client, "one more")
            await feed.until(lambda: sum(bucket[2] for bucket in feed.buckets.values()) == before + 2)
        detail = (await r.admin.get("/admin/live/target", params={"id": f"{a.address}/0"})).json()
        assert len(detail["requests"]) == before + 2
        assert detail["instance"]["id"] == a.address


async def test_a_target_that_is_not_there(router) -> None:
    async with engine() as a, router([a]) as r:
        answer = await r.admin.get("/admin/live/target?id=nobody/0")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_target")


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/style.css", "/page/vendor/uplot.js"])
async def test_files_of_the_page_are_locked_down(router, path: str) -> None:
    async with engine() as a, router([a], wait=False) as r:
        answer = await r.admin.get(path)
        assert answer.status_code == 200
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy.pop("default-src") == policy.pop("base-uri") == policy.pop("form-action") == "'none'"
        assert policy.pop("frame-ancestors") == "'none'"
        assert set(policy.values()) == {"'self'"}
        assert (await r.admin.get("/page/../api/admin.py")).status_code == 404
        assert (await r.admin.get("/page/vendor/nothing.js")).status_code == 404


async def test_the_router_stops_with_a_page_open(router) -> None:
    async with engine() as a:
        async with router([a]) as r:
            client = httpx.AsyncClient(base_url=r.admin_url, timeout=PATIENCE_S)
            request = client.build_request("GET", "/admin/live")
            answer = await client.send(request, stream=True)
            await anext(answer.aiter_lines())
        await answer.aclose()
        await client.aclose()
