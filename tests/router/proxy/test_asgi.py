"""ASGI applications over exchanges: requests, responses, and disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request

from router.proxy.asgi import AsgiHandler
from tests.router.proxy.connections import an_exchange, arrive, connection_of, sent

START = {"type": "http.response.start", "status": 200, "headers": [(b"A", b"b")]}


class App:
    """Keeps its side of the exchange, for the test to play."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope, self.receive, self.send = scope, receive, send


async def played(exchange: Any) -> App:
    app = App()
    await AsgiHandler(app).answer(exchange)
    return app


async def test_the_scope_is_the_requests_head():
    app = await played(an_exchange((b"a", b"1"), path="/a b", target=b"/a%20b?q=1", http_1_1=False))
    scope = app.scope
    assert (scope["type"], scope["method"], scope["http_version"], scope["scheme"]) == ("http", "POST", "1.0", "http")
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a b", b"/a%20b", b"q=1")
    assert scope["headers"] == [(b"a", b"1")]


async def test_the_body_comes_in_pieces_and_then_the_disconnect():
    exchange = an_exchange(body=None)
    app = await played(exchange)
    arrive(exchange, b"ab", more=True)
    assert await app.receive() == {"type": "http.request", "body": b"ab", "more_body": True}
    arrive(exchange, b"c")
    assert await app.receive() == {"type": "http.request", "body": b"c", "more_body": False}
    waiting = asyncio.ensure_future(app.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    exchange.on_disconnect()
    assert await waiting == {"type": "http.disconnect"}


async def test_a_client_lost_in_its_body_is_a_disconnect():
    exchange = an_exchange(body=None)
    app = await played(exchange)
    exchange.on_disconnect()
    assert await app.receive() == {"type": "http.disconnect"}


async def test_a_whole_answer_ends_the_waiting_for_a_disconnect():
    exchange = an_exchange()
    app = await played(exchange)
    await app.receive()
    waiting = asyncio.ensure_future(app.receive())
    await asyncio.sleep(0)
    await app.send(START)
    await app.send({"type": "http.response.body", "body": b"x"})
    assert await waiting == {"type": "http.disconnect"}


async def test_an_answer_in_pieces():
    exchange = an_exchange()
    app = await played(exchange)
    await app.send(START)
    await app.send({"type": "http.response.body", "body": b"x", "more_body": True})
    await app.send({"type": "http.response.body"})
    assert sent(exchange).endswith(b"a: b\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")


async def test_the_connection_is_ours_but_an_application_may_end_it():
    exchange = an_exchange()
    app = await played(exchange)
    await app.send(START | {"headers": [(b"Connection", b"Close"), (b"content-length", b"0")]})
    await app.send({"type": "http.response.body"})
    assert sent(exchange).count(b"connection: close") == 1
    assert connection_of(exchange).end == "closed"


async def test_send_waits_for_a_client_that_does_not_read_and_drops_writes_to_one_that_is_gone():
    exchange = an_exchange()
    app = await played(exchange)
    connection = connection_of(exchange)
    connection.write_paused = True
    sending = asyncio.ensure_future(app.send(START))
    await asyncio.sleep(0)
    assert not sending.done()
    connection.drained.set()
    await sending
    exchange.on_disconnect()
    await app.send({"type": "http.response.body", "body": b"x"})
    assert sent(exchange) == b""


async def test_fastapi_serves_behind_it():
    app = FastAPI()

    @app.post("/sum")
    async def sum_(request: Request) -> dict[str, int]:
        return {"sum": sum(await request.json())}

    exchange = an_exchange((b"content-type", b"application/json"), path="/sum", body=b"[1,2]")
    await AsgiHandler(app).answer(exchange)
    assert sent(exchange).endswith(b'\r\n\r\n{"sum":3}')
