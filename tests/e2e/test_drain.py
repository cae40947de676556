"""`warmroute drain` and `warmroute undrain` as commands, before a real router."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tests.e2e.chats import Chat, beside
from tests.e2e.conftest import MODEL, Router
from tests.e2e.test_lifecycle import warmroute
from tests.fakes.engines import engine, eventually

Start = Callable[..., AbstractAsyncContextManager[Router]]


async def test_drain_returns_when_the_last_request_of_the_engine_has_ended(router: Start) -> None:
    async with engine(decode_ms_per_token=20) as a, router([a]) as running:
        at = a.url.removeprefix("http://"), "--admin", running.admin_url
        async with beside(Chat(running, "long").turn(ignore_eos=True, max_tokens=300)) as answer:
            await eventually(lambda: running.booked)
            drained = await warmroute("drain", *at)
            assert answer.done()
            assert answer.result().ok
        assert drained.code == 0
        undo = f"`warmroute undrain {' '.join(at)}` ends that"
        alone = f"{at[0]} was the last ready engine of {MODEL}, whose requests get 503 now; {undo}\n"
        assert drained.err == f"{alone}{at[0]}: requests left: 1\n"
        assert drained.out == f"{at[0]} is drained: no requests left; {undo}\n"
        assert not (await Chat(running, "refused").turn()).ok
        assert (await warmroute("undrain", *at)).out == f"{at[0]} gets requests again\n"
        assert (await Chat(running, "again").turn()).ok
        assert "gets no new requests" in (await warmroute("drain", "--no-wait", *at)).out


async def test_an_engine_that_the_router_does_not_have(router: Start) -> None:
    async with engine() as a, router([{"url": a.url, "name": "engine-1"}]) as running:
        for word in ("drain", "undrain"):
            ended = await warmroute(word, "engine-2", "--admin", running.admin_url)
            assert (ended.code, ended.out) == (2, "")
            assert 'unknown engine "engine-2": did you mean "engine-1"?' in ended.err
