"""Ids beside the text on the wire: who gets them, and what an engine is asked that will not have them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.backends.vllm.disaggregation import decode_body, mooncake_params, prefill_body
from router.prompt.prompt import Endpoint
from router.proxy.headers import NO_HEADERS
from router.proxy.token_ids import TokenIdUpstreams
from router.proxy.upstreams import UpstreamExchange, UpstreamRequest, Upstreams, UpstreamUnanswered

PLAIN = b'{"model":"m","messages":[]}'
IDS = (b"1,2", b"3")
PAIR = mooncake_params("xfer-1", "http://p:8998", "engine-1")
OK = (200, b"{}")
BY_NAME = (400, b'{"error":{"param":"kv_transfer_params.prompt_token_ids"}}')


class Engines:
    """Both instances are one script: the answers in turn. `bodies` is what arrived."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.refused: list[tuple[str, bytes | None]] = []

    async def serve(self, peer: Any) -> None:
        while self.answers:
            _, body = await peer.message()
            self.bodies.append(json.loads(body))
            status, text = self.answers.pop(0)
            peer.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(text), text))

    @property
    def ids(self) -> list[list[int] | None]:
        return [body.get("kv_transfer_params", {}).get("prompt_token_ids") for body in self.bodies]


@pytest.fixture
def asked(house: Any) -> Any:
    """`async with asked(engines, body)`: the status of the answer to `body`, sent to instance `d` (or another)."""

    @asynccontextmanager
    async def ask(engines: Engines, body: bytes, instance: str = "d", takers: str = "dp") -> AsyncIterator[int | str]:
        engine = await house.engine(engines.serve)
        upstreams = Upstreams(connect_timeout_s=1.0, keepalive_s=5.0)
        upstreams.add("d", f"http://127.0.0.1:{engine.port}")
        upstreams.add("p", f"http://127.0.0.1:{engine.port}")
        with_ids = TokenIdUpstreams(upstreams, PLAIN, "d", IDS, takers, lambda *args: engines.refused.append(args))
        question = UpstreamRequest("POST", b"/v1/chat/completions", NO_HEADERS, body)
        answer = await with_ids.send(instance, question, first_byte_s=5.0, idle_s=5.0)
        try:
            if isinstance(answer, UpstreamUnanswered):
                yield answer.reason
            else:
                assert isinstance(answer, UpstreamExchange)
                with answer:
                    yield answer.status
        finally:
            upstreams.close()

    return ask


async def test_a_taker_gets_them_and_others_do_not(asked: Any) -> None:
    for takers, ids in (("dp", [1, 2, 3]), ("p", None)):
        engines = Engines(OK)
        async with asked(engines, PLAIN, takers=takers) as status:
            assert (status, engines.ids, engines.refused) == (200, [ids], [])


async def test_a_half_keeps_its_parameters_beside_them(asked: Any) -> None:
    engines = Engines(OK)
    async with asked(engines, decode_body(PLAIN, PAIR.decode)):
        assert engines.bodies[0]["kv_transfer_params"] == json.loads(PAIR.decode) | {"prompt_token_ids": [1, 2, 3]}


@pytest.mark.parametrize("refusal", [BY_NAME, (400, b""), (400, b"x" * 100_000)])
async def test_after_a_400_the_client_s_own_request_is_asked(asked: Any, refusal: tuple[int, bytes]) -> None:
    engines = Engines(refusal, OK, OK)
    async with asked(engines, PLAIN) as status:
        assert (status, engines.ids) == (200, [[1, 2, 3], None])
        assert engines.bodies[1] == json.loads(PLAIN)
        assert engines.refused == [("d", refusal[1] if len(refusal[1]) < 65536 else None)]


async def test_what_is_wrong_without_ids_as_well_is_the_client_s_to_hear(asked: Any) -> None:
    engines = Engines((400, b"{}"), (400, b"{}"))
    async with asked(engines, PLAIN) as status:
        assert (status, len(engines.bodies)) == (400, 2)


@pytest.mark.parametrize("status", [200, 404, 422, 500, 503])
async def test_no_other_answer_is_asked_about_again(asked: Any, status: int) -> None:
    engines = Engines((status, b"{}"))
    async with asked(engines, PLAIN) as came:
        assert (came, engines.refused) == (status, [])


async def test_a_refusing_decode_half_computes_the_prompt_itself_since_its_kv_is_gone(asked: Any) -> None:
    engines = Engines(BY_NAME, OK)
    async with asked(engines, decode_body(PLAIN, PAIR.decode)) as status:
        assert status == 200
        assert engines.bodies[1] == json.loads(PLAIN)


async def test_a_refusing_prefill_half_still_prefills(asked: Any) -> None:
    half = prefill_body(Endpoint.CHAT, PLAIN, PAIR.prefill)
    engines = Engines(BY_NAME, OK)
    async with asked(engines, half, "p") as status:
        assert status == 200
        assert engines.bodies[1] == json.loads(half)
        assert engines.refused == [("p", BY_NAME[1])]


async def test_an_engine_that_is_not_reached_is_not_asked_again(asked: Any) -> None:
    engines = Engines()
    async with asked(engines, PLAIN) as came:
        assert (came, engines.refused) == ("died", [])
