"""The call over scripted ASGI, with and without our listener's extension."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.errors import TooBusy, TooLarge
from router.proxy.call import EXTENSION, Call, ClientGone


class Client:
    """Plays the server's part of ASGI: gives `messages`, then a disconnect when `leave` is set."""

    def __init__(self, *messages: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.messages = list(messages)
        self.leave = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.received = 0
        self.scope = {
            "method": "POST",
            "path": "/a b",
            "raw_path": b"/a%20b",
            "query_string": b"q=1",
            "headers": headers or [],
        }

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        if self.messages:
            return self.messages.pop(0)
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def call(self) -> Call:
        return Call(self.scope, self.receive, self.send)


class Wire:
    def __init__(self) -> None:
        self.callback = None
        self.was_cut = False

    def when_gone(self, callback):
        self.callback = callback

    def cut(self) -> None:
        self.was_cut = True


class Budget:
    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.held: list[int] = []

    def hold(self, bytes_: int) -> None:
        if sum(self.held) + bytes_ > self.limit:
            raise TooBusy("full")
        self.held.append(bytes_)


def body(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_target_and_headers():
    call = Client(headers=[(b"a", b"1"), (b"a", b"2")]).call()
    assert call.target == b"/a%20b?q=1"
    assert (call.header(b"a"), call.header(b"b")) == (b"1", None)


async def test_a_body_in_pieces_is_joined_and_counted_as_it_grows():
    client = Client(body(b"ab", True), body(b"", True), body(b"c"))
    budget = Budget()
    with client.call() as call:
        assert await call.body(10, budget) == b"abc"
    assert budget.held == [2, 1]


async def test_a_declared_length_is_counted_once_before_reading():
    client = Client(body(b"abc"), headers=[(b"content-length", b"3")])
    budget = Budget()
    with client.call() as call:
        assert await call.body(10, budget) == b"abc"
    assert budget.held == [3]


async def test_a_declared_length_over_the_limit_is_refused_before_reading():
    client = Client(body(b"x" * 11), headers=[(b"content-length", b"11")])
    budget = Budget()
    with client.call() as call, pytest.raises(TooLarge):
        await call.body(10, budget)
    assert (client.received, budget.held) == (0, [])


async def test_a_growing_body_over_the_limit_is_refused():
    client = Client(body(b"x" * 6, True), body(b"x" * 6, True))
    with client.call() as call, pytest.raises(TooLarge):
        await call.body(10, Budget())


async def test_a_full_budget_refuses_before_reading():
    client = Client(body(b"abc"), headers=[(b"content-length", b"3")])
    with client.call() as call, pytest.raises(TooBusy):
        await call.body(10, Budget(2))
    assert client.received == 0


async def test_a_client_that_leaves_during_its_body_ends_the_block():
    client = Client(body(b"ab", True))
    client.leave.set()
    with pytest.raises(ClientGone), client.call() as call:
        await call.body(10, Budget())
    assert asyncio.current_task().cancelling() == 0


async def test_without_the_extension_a_watcher_sees_the_client_leave():
    client = Client(body(b"{}"))
    with pytest.raises(ClientGone), client.call() as call:  # noqa: PT012  the block is what is tested
        await call.body(10, Budget())
        client.leave.set()
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    assert call.gone


async def test_with_the_extension_nobody_waits_on_receive():
    client, wire = Client(body(b"{}")), Wire()
    client.scope["extensions"] = {EXTENSION: wire}
    with pytest.raises(ClientGone), client.call() as call:  # noqa: PT012  the block is what is tested
        await call.body(10, Budget())
        asyncio.get_running_loop().call_soon(wire.callback)
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    assert client.received == 1
    assert wire.callback is None


async def test_a_cancellation_from_elsewhere_stays_one():
    client = Client()

    async def line() -> None:
        with client.call():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(line())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_watcher_ends_with_the_block():
    client = Client(body(b"{}"))
    before = len(asyncio.all_tasks())
    with client.call() as call:
        await call.body(10, Budget())
        assert len(asyncio.all_tasks()) == before + 1
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before


async def test_a_whole_answer():
    client = Client()
    call = client.call()
    await call.answer(418, [(b"a", b"b")], b"tea")
    assert call.started
    assert client.sent == [
        {"type": "http.response.start", "status": 418, "headers": [(b"a", b"b"), (b"content-length", b"3")]},
        {"type": "http.response.body", "body": b"tea", "more_body": False},
    ]


async def test_cut_reaches_the_wire():
    client, wire = Client(), Wire()
    client.scope["extensions"] = {EXTENSION: wire}
    client.call().cut()
    assert wire.was_cut
