"""A router is waited for until it can send."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from router.testbed.bench.router_process import is_ready


def telling(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://router", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("states", "ready"),
    [([], False), (["joining"], False), (["ready", "joining"], False), (["ready"], True), (["ready", "ready"], True)],
)
async def test_it_can_send_when_it_has_instances_and_all_are_ready(states: list[str], ready: bool) -> None:
    listing = {"instances": [{"state": state} for state in states]}
    async with telling(lambda _: httpx.Response(200, json=listing)) as http:
        assert await is_ready(http) is ready


async def test_one_that_does_not_answer_yet_is_not_ready() -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with telling(refused) as http:
        assert not await is_ready(http)
    async with telling(lambda _: httpx.Response(503)) as http:
        assert not await is_ready(http)
