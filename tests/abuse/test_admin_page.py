"""The admin listener and its HTML page against a browser: markup from clients, other sites' pages, rebound names."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Router
from tests.fakes.engines import engine

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
VOID = {"meta", "link", "br", "img", "input", "hr"}


def markup(marker: str) -> str:
    """A text that breaks out of wherever it is put unescaped, and names where it came from."""
    return f"""{marker}"'></td></title></style><script>alert(1)</script><img src=x onerror=alert(1)>{{{{7*7}}}}&lt;"""


class Page(HTMLParser):
    """The elements, attributes and texts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.drawn: list[str] = []  # those in SVG
        self.attributes: set[tuple[str, str]] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag == "svg" or "svg" in self.open:
            self.drawn.append(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


async def page_of(r: Router, path: str, body: dict[str, Any], headers: dict[str, str]) -> Page:
    answer = await r.post(path, body, headers=headers)
    shown = await r.admin.get(f"/admin/records/{answer.headers['x-warmroute-record']}", headers=BROWSER)
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in shown.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert "script-src" not in policy
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert shown.headers["cache-control"] == "no-store"
    return Page(shown.text)


async def until_ready(r: Router) -> None:
    async with asyncio.timeout(10):
        while (await r.http.get("/ready")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


CHATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "name": markup("name"), "content": markup("content")}]},
    "/v1/completions": {"prompt": markup("prompt"), "suffix": markup("suffix")},
    "/v1/responses": {"input": markup("input"), "instructions": markup("instructions")},
    "/v1/messages": {"messages": [{"role": "user", "content": markup("content")}], "system": markup("system")},
    "/v1/embeddings": {"input": markup("input")},
}
FIELDS = {
    "user": markup("user"),
    "session_id": markup("session_id"),
    "cache_salt": markup("salt"),
    "metadata": {"user_id": markup("metadata")},
    "max_tokens": 2,
    "tools": [{"type": "function", "function": {"name": markup("tool"), "description": markup("about")}}],
}
HEADERS = ("x-session-id", "x-slo-ttft-ms", "x-slo-tpot-ms", "user-agent", "x-request-id", "referer", "traceparent")


@pytest.mark.parametrize("path", CHATS)
async def test_markup_in_every_field_and_header_stays_text(router, path: str) -> None:
    """The model's name is shown, and an engine chooses it; what else is shown must be text as well."""
    model = markup("model")
    async with engine(model=model) as fake, router([fake], tokenizers={}, wait=False) as r:
        await until_ready(r)
        headers = {name: markup(name) for name in HEADERS}
        hostile = await page_of(r, path, {"model": model, **CHATS[path], **FIELDS}, headers)
        plain = await page_of(
            r, path, {"model": model, "prompt": "x", "input": "x", "messages": [], "max_tokens": 2}, {}
        )
        assert set(hostile.elements) <= set(plain.elements) | {"td", "tr", "th"}
        assert not {"script", "img", "iframe", "object", "form", "a", "base"} & set(hostile.elements)
        assert set(hostile.drawn) <= {"svg", "rect", "line"}  # our own charts
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name, _ in hostile.attributes)
        assert model in hostile.texts
        assert hostile.open == []


HOSTS = (
    "evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost.evil.example", "localhost.",
    "127.0.0.1.nip.io:{port}", "10.0.0.1:{port}", "[::2]:{port}", "0.0.0.0:{port}", "", ":{port}", "[", "evil@[::1",
)  # fmt: skip
FOREIGN = (
    {"origin": "null"},
    {"origin": "http://evil.example"},
    {"origin": "http://127.0.0.1.evil.example"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://127.0.0.1"},
    {"origin": ""},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "content-type": "text/plain"},
)
ENDPOINTS = (
    ("GET", "/admin/instances", b""),
    ("GET", "/admin/records", b""),
    ("GET", "/admin/live", b""),
    ("GET", "/admin/live/target?id=a/0", b""),
    ("GET", "/admin/cache/tree", b""),
    ("POST", "/admin/activate", b'{"policy":"random"}'),
    ("POST", "/admin/undo", b""),
    ("PUT", "/admin/policies/warm", b"scorers: [{name: random}]"),
    ("DELETE", "/admin/experiment", b""),
    ("POST", "/admin/explain?path=/v1/completions", b"{}"),
)


async def ask(r: Router, method: str, path: str, headers: dict[str, str], body: bytes) -> int:
    """The status of one request with exactly these headers; 0: no answer."""
    host, port = r.admin_url.rpartition("//")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines += [f"content-length: {len(body)}", "connection: close", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    status = await reader.readline()
    writer.close()
    return int(status.split()[1]) if status else 0


async def test_no_page_of_another_site_reaches_the_admin_listener(router) -> None:
    """By a rebound name, by a blind form or fetch, from another port of this machine."""
    async with engine() as fake, router([fake]) as r:
        port = r.admin_url.rpartition(":")[2]
        own = f"127.0.0.1:{port}"
        before = (await r.admin.get("/admin/policies")).json()
        for method, path, body in ENDPOINTS:
            for host in HOSTS:
                status = await ask(r, method, path, {"host": host.format(port=port)}, body)
                assert status in (400, 403), (method, path, host, status)
            for foreign in FOREIGN:
                status = await ask(r, method, path, {"host": own} | foreign, body)
                assert status == 403, (method, path, foreign, status)
            assert await ask(r, "OPTIONS", path, {"host": own, "origin": "http://evil.example"}, b"") in (403, 405)
        assert (await r.admin.get("/admin/policies")).json() == before
        for headers in ({}, {"origin": f"http://{own}", "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
            assert await ask(r, "GET", "/admin/instances", {"host": own} | headers, b"") == 200
        assert await ask(r, "GET", "/admin/instances", {"host": f"localhost:{port}"}, b"") == 200


async def test_nobody_without_a_token_has_a_body_read(router) -> None:
    """Authorisation comes first: a large body from anybody is neither parsed nor kept."""
    tokens = [{"name": "a", "hash": "a" * 64, "rights": ["read", "write"]}]
    async with engine() as fake, router([fake], admin={"host": "127.0.0.1", "port": 0, "tokens": tokens}) as r:
        for method, path, _ in ENDPOINTS:
            answer = await r.admin.request(method, path, content=b'{"policy": "' + b"x" * 2_000_000 + b'"}')
            assert answer.status_code == 401, (method, path)


# in a real browser, where there is one

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


async def open_page(url: str, folder: Path, *switches: str) -> tuple[str, str]:
    """The document after its scripts ran for a while, and what the browser complained of."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *(f"--user-data-dir={folder}", "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"),
        *switches,
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        document, complaints = await process.communicate()
    return document.decode(), complaints.decode()


@in_a_browser
@pytest.mark.abuse
async def test_a_browser_shows_the_page_and_runs_nothing(router, tmp_path: Path) -> None:
    model = markup("model")
    async with engine(model=model) as fake, router([fake], tokenizers={}, wait=False) as r:
        await until_ready(r)
        headers = {name: markup(name) for name in HEADERS}
        answer = await r.post(
            "/v1/completions", {"model": model, **CHATS["/v1/completions"], **FIELDS}, headers=headers
        )
        url = f"{r.admin_url}/admin/records/{answer.headers['x-warmroute-record']}"
        document, complaints = await open_page(url, tmp_path)
        page = Page(document)
        assert "Outcome" in page.texts
        assert model in page.texts
        assert not {"script", "img", "iframe", "form"} & set(page.elements)
        assert "Content Security Policy" not in complaints, "nothing was tried, and the page's own style is allowed"


EVIL_PAGE = """<!doctype html><body><form id=f method=post enctype=text/plain action="ADMIN/admin/activate">
<input name='{"policy":"random","x":"' value='"}'></form><img src="ADMIN/admin/instances"><script>
(async () => {
  const asked = [];
  const ask = (path, options) => asked.push(fetch("ADMIN" + path, options).then(a => a.status, e => "blocked"));
  ask("/admin/instances", {});
  ask("/admin/policies", {mode: "no-cors", credentials: "include"});
  ask("/admin/activate", {method: "POST", mode: "no-cors", body: '{"policy":"random"}'});
  ask("/admin/undo", {method: "POST", mode: "no-cors"});
  ask("/admin/instances/INSTANCE/drain", {method: "POST", mode: "no-cors"});
  ask("/admin/policies/warm", {method: "PUT", body: "scorers: [{name: random}]"});
  ask("/admin/experiment", {method: "DELETE"});
  navigator.sendBeacon("ADMIN/admin/undo", "");
  document.title = "asked: " + (await Promise.all(asked)).join(" ");
  const frame = document.createElement("iframe"); frame.name = "frame"; document.body.append(frame);
  const form = document.getElementById("f"); form.target = "frame"; form.submit();
})();
</script>"""


@asynccontextmanager
async def evil_site(admin_url: str, instance: str) -> AsyncIterator[int]:
    """A site whose page tries to use the admin listener; its port."""
    page = EVIL_PAGE.replace("ADMIN", admin_url).replace("INSTANCE", instance).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(page) + page)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@in_a_browser
@pytest.mark.abuse
async def test_a_page_of_another_site_changes_nothing(router, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From another port, another name, and a name that resolves to this machine (DNS rebinding)."""
    async with engine() as fake, router([fake], policies={"random": {"scorers": [{"name": "random"}]}}) as r:
        before = (await r.admin.get("/admin/policies")).json(), (await r.instances())[fake.address]["state"]
        rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
        port = r.admin_url.rpartition(":")[2]
        with caplog.at_level(logging.INFO, "warmroute.admin"):
            for host, admin in (
                ("127.0.0.1", r.admin_url),
                ("evil.example", r.admin_url),
                ("evil.example", f"http://evil.example:{port}"),
            ):
                async with evil_site(admin, fake.address) as site:
                    document, _ = await open_page(f"http://{host}:{site}/", tmp_path, rebound)
                assert "<title>asked: " in document, document[:500]
                assert not re.search(r"asked: [^<]*\b2\d\d\b", document), document[:300]
            document, _ = await open_page(f"http://evil.example:{port}/admin/instances", tmp_path, rebound)
            assert "wrong_host" in document
        assert caplog.messages == [], "no write was allowed"
        assert before == ((await r.admin.get("/admin/policies")).json(), (await r.instances())[fake.address]["state"])
