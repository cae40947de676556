"""One exchange over a scripted connection: the body within bounds, the answer's framing, and the client's loss."""

from __future__ import annotations

import asyncio

import pytest

from router.errors import TooBusy, TooLarge
from router.proxy.call import ClientDisconnected
from router.proxy.client_exchange import PIECE_BYTES
from tests.router.proxy.connections import an_exchange, arrive, connection_of, sent


class Budget:
    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.held: list[int] = []

    def hold(self, bytes_: int) -> None:
        if sum(self.held) + bytes_ > self.limit:
            raise TooBusy("full")
        self.held.append(bytes_)


def length(size: int) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % size)


def test_of_a_header_that_comes_twice_the_first_value_counts():
    call = an_exchange((b"a", b"1"), (b"a", b"2"), (b"empty", b""))
    assert (call.header(b"a"), call.header(b"b")) == (b"1", None)
    assert (call.text(b"a"), call.text(b"empty"), call.text(b"b")) == ("1", None, None)


# The body


async def test_a_body_in_pieces_is_joined_and_counted_as_it_grows():
    call = an_exchange(body=None)
    budget = Budget()
    with call:
        reading = asyncio.ensure_future(call.body(10, budget))
        for piece, more in ((b"ab", True), (b"c", False)):
            await asyncio.sleep(0)
            arrive(call, piece, more=more)
        assert await reading == b"abc"
    assert budget.held == [2 + PIECE_BYTES, 1 + PIECE_BYTES]


async def test_a_declared_length_is_counted_as_it_arrives():
    call = an_exchange(length(3), body=None)
    budget = Budget()
    with call:
        reading = asyncio.ensure_future(call.body(10, budget))
        await asyncio.sleep(0)
        assert budget.held == []
        arrive(call, b"abc")
        assert await reading == b"abc"
    assert budget.held == [3 + PIECE_BYTES]


async def test_a_declared_length_over_the_limit_is_refused_before_reading():
    call = an_exchange(length(11), body=None)
    budget = Budget()
    with call, pytest.raises(TooLarge):
        await call.body(10, budget)
    assert (connection_of(call).resumed, budget.held) == (0, [])


async def test_a_growing_body_over_the_limit_is_refused():
    call = an_exchange(body=b"x" * 11)
    with call, pytest.raises(TooLarge):
        await call.body(10, Budget())


async def test_a_full_budget_ends_the_reading():
    call = an_exchange(length(9), body=None)
    arrive(call, b"abc", more=True)
    with call, pytest.raises(TooBusy):
        await call.body(10, Budget(2))
    assert connection_of(call).resumed == 0


async def test_more_of_the_body_is_asked_for_only_while_it_is_wanted():
    call = an_exchange(body=None)
    with call:
        reading = asyncio.ensure_future(call.body(10, Budget()))
        await asyncio.sleep(0)
        assert (connection_of(call).resumed, call.reader_waits) == (1, True)
        arrive(call, b"ab")
        assert not call.reader_waits
        assert await reading == b"ab"


# The client's loss


async def test_a_client_that_leaves_during_its_body_ends_the_block():
    call = an_exchange(body=None)
    arrive(call, b"ab", more=True)
    asyncio.get_running_loop().call_soon(call.on_disconnect)
    with pytest.raises(ClientDisconnected), call:
        await call.body(10, Budget())
    assert asyncio.current_task().cancelling() == 0


async def test_a_client_that_left_before_anybody_looked_ends_the_block():
    call = an_exchange(body=None)
    call.on_disconnect()
    with pytest.raises(ClientDisconnected), call:
        await call.body(10, Budget())


async def test_whatever_the_block_waits_for_is_cut_short():
    call = an_exchange(body=b"{}")
    with pytest.raises(ClientDisconnected), call:  # noqa: PT012  the block is what is tested
        await call.body(10, Budget())
        asyncio.get_running_loop().call_soon(call.on_disconnect)
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    assert call.gone


async def test_nothing_is_said_to_a_client_that_is_gone():
    call = an_exchange()
    call.start(200, [])
    call.on_disconnect()
    call.write(b"a")
    call.finish(b"b")
    assert sent(call) == b""
    assert not call.complete


async def test_a_client_that_leaves_after_a_whole_answer_is_not_lost():
    call = an_exchange()
    with call:
        call.answer(200, [], b"")
        call.on_disconnect()
        await asyncio.sleep(0)
    assert not call.gone


async def test_a_cancellation_from_elsewhere_stays_one():
    call = an_exchange()

    async def line() -> None:
        with call:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(line())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# The answer


async def test_a_whole_answer_is_one_write():
    call = an_exchange()
    call.answer(418, [(b"a", b"b")], b"tea")
    assert call.started
    assert connection_of(call).transport.written == [
        b"HTTP/1.1 418 I'm a Teapot\r\na: b\r\ncontent-length: 3\r\n\r\ntea",
    ]
    assert connection_of(call).end is None


async def test_an_answer_without_a_length_goes_in_chunks_the_first_together_with_the_head():
    call = an_exchange()
    call.start(200, [])
    assert sent(call) == b""
    call.write(b"a" * 17)
    call.write(b"")
    call.finish(b"b")
    assert connection_of(call).transport.written == [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11\r\n" + b"a" * 17 + b"\r\n",
        b"1\r\nb\r\n0\r\n\r\n",
    ]


async def test_a_status_without_a_name():
    call = an_exchange()
    call.answer(299, [], b"")
    assert sent(call).startswith(b"HTTP/1.1 299 \r\n")


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_an_answer_without_a_body(method, status):
    call = an_exchange(method=method)
    call.start(status, [(b"content-length", b"3")])
    call.finish(b"abc")
    assert sent(call).endswith(b"content-length: 3\r\n\r\n")


async def test_http_1_0_gets_no_chunks_and_the_end_of_the_connection():
    call = an_exchange(http_1_1=False)
    call.start(200, [])
    call.write(b"a")
    call.finish(b"b")
    assert sent(call) == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nab"
    assert connection_of(call).end == "closed"


async def test_an_answer_before_100_continue_closes_the_connection():
    call = an_exchange((b"expect", b"100-Continue"), body=None)
    call.answer(413, [], b"")
    assert b"connection: close\r\n" in sent(call)
    assert connection_of(call).end == "closed"


async def test_reading_the_body_sends_100_continue_once():
    call = an_exchange((b"expect", b"100-continue"), body=None)
    reading = asyncio.ensure_future(call.body(10, Budget()))
    await asyncio.sleep(0)
    arrive(call, b"a", more=True)
    await asyncio.sleep(0)
    arrive(call, b"b")
    assert await reading == b"ab"
    assert sent(call) == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb"])
async def test_a_line_break_in_a_header_is_not_sent(value):
    call = an_exchange()
    with pytest.raises(RuntimeError, match="line break"):
        call.start(200, [(b"a", value)])


async def test_a_body_of_another_length_than_promised_is_a_fault():
    call = an_exchange()
    call.start(200, [length(3)])
    with pytest.raises(RuntimeError, match="Content-Length"):
        call.finish(b"ab")


async def test_nothing_follows_a_whole_answer():
    call = an_exchange()
    call.answer(200, [], b"")
    with pytest.raises(RuntimeError, match="already complete"):
        call.write(b"more")


@pytest.mark.parametrize(
    ("http_1_1", "headers", "end"),
    [(True, [], "closed"), (True, [length(9)], "closed"), (False, [length(9)], "closed"), (False, [], "reset")],
)
async def test_cut_shows_that_the_answer_is_not_whole(http_1_1, headers, end):
    """A length or chunking shows what is missing; else only a reset does."""
    call = an_exchange(http_1_1=http_1_1)
    call.start(200, headers)
    call.write(b"a")
    call.abort()
    assert connection_of(call).end == end


async def test_drain_waits_for_a_client_that_does_not_read():
    call = an_exchange()
    connection = connection_of(call)
    connection.write_paused = True
    waiting = asyncio.ensure_future(call.drain())
    await asyncio.sleep(0)
    assert call.write_paused
    assert not waiting.done()
    connection.drained.set()
    await waiting
    assert not call.write_paused
