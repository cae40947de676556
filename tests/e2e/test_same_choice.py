"""The same request on the same state goes to the same target, whether a proxy or a gateway's picker chooses.

Two routers get the same requests in the same order, one over HTTP and one over ext_proc, through the real listener,
gRPC server, `route()`, scheduler and policies. Only what sends is replaced, so that the choice itself is the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from router.app import App
from router.backends.discovery.discovery import DiscoveredInstance
from router.clock import ManualClock
from router.config import schema
from router.fleet.engine_facts import ModelCard
from router.proxy.relay import RelayEnd, RelayFinished
from router.request.data_path import AttemptWatch
from router.request.picker_path import PickerPath
from router.request.relay_path import RelayPath
from router.request.request import Request
from router.scheduling.ticket import Ticket
from tests.e2e.conftest import LOCAL, MODEL, TOKENIZER
from tests.fakes.gateway import BUFFERED, Gateway, Refusal
from tests.patience import PATIENCE_S
from tests.suites.properties import examples

CARD = ModelCard(MODEL, MODEL, None, 32768)
WORDS = ["the", "warm", "cache", "remembers", "what", "the", "cold", "one", "forgot"]
EXPERIMENT = {"arms": {"warm": 50, "round_robin": 50}, "shadows": ["lmetric"]}


async def answer_choice(
    self: Any, request: Request, ticket: Ticket, kv_transfer_params: bytes | None, watch: AttemptWatch
) -> RelayEnd:
    """Answer with the choice in place of sending the request."""
    record = ticket.record
    policy = None if record.policy is None else record.policy.name
    told = {"target": ticket.target.id, "policy": policy, "arm": record.arm, "tokens": record.prompt_tokens_counted}
    with watch:
        watch.on_first_byte(200)
        end = RelayFinished(200, None)
        watch.on_end(end)
    request.call.answer(200, [(b"content-type", b"application/json")], json.dumps(told).encode())
    return end


class Pair:
    """A proxy and a picker in the same state."""

    def __init__(self, **sections: Any) -> None:
        self.loop = uvloop.new_event_loop()
        self.clocks = ManualClock(), ManualClock()
        instances = [{"name": f"e{i}", "url": f"http://127.0.0.{i + 1}:8000"} for i in range(5)]
        config = schema.Config.model_validate(
            {
                "listen": LOCAL,
                "admin": LOCAL,
                "picker": LOCAL | {"health_port": 0, "tls": "off"},
                "fleet": {"instances": instances},
                "tokenizers": {MODEL: {"path": TOKENIZER}},
                "seed": 7,
                **sections,
            }
        )
        self.apps: list[App] = []
        self.gateway: Any = None
        self.loop.run_until_complete(self._start(config))

    async def _start(self, config: schema.Config) -> None:
        for clock in self.clocks:
            app = App(config, clock)
            listed = [DiscoveredInstance(instance, "the test") for instance in config.fleet.instances]
            await app.core.membership.update_source("config", listed)
            for instance in config.fleet.instances:
                app.core.membership.joined(instance.id, [CARD], [])
            await app.listener.start()
            self.apps.append(app)
        assert self.apps[1]._picker is not None
        await self.apps[1]._picker.start()
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.apps[0].port}", timeout=PATIENCE_S)
        self.connection = Gateway.connect(self.apps[1].picker_port)
        self.gateway = await self.connection.__aenter__()

    def ask(self, body: bytes, headers: list[tuple[str, str]], mode: int, pause_s: float) -> tuple[Any, Any]:
        """What each of them answers."""
        for clock in self.clocks:
            clock.advance(pause_s)
        return self.loop.run_until_complete(self._ask(body, headers, mode))

    async def _ask(self, body: bytes, headers: list[tuple[str, str]], mode: int) -> tuple[Any, Any]:
        given_headers = [("content-type", "application/json"), *headers]
        proxied = await self.http.post("/v1/chat/completions", content=body, headers=given_headers)
        exchange = self.gateway.open(request_mode=mode)
        picked = await exchange.ask("/v1/chat/completions", body, headers=headers)
        assert isinstance(picked, Refusal), "an answer of its own, as there is nobody to send it"
        return (proxied.status_code, proxied.json()), (picked.status, picked.json)

    def close(self) -> None:
        self.loop.run_until_complete(self._close())
        self.loop.close()

    async def _close(self) -> None:
        await self.http.aclose()
        await self.connection.__aexit__(None, None, None)
        for app in self.apps:
            await app.stop()


@pytest.fixture(scope="module", params=[{}, {"experiment": EXPERIMENT}, {"active": "session_sticky"}], ids=str)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    patch = pytest.MonkeyPatch()
    patch.setattr(RelayPath, "run", answer_choice)
    patch.setattr(PickerPath, "run", answer_choice)
    running = Pair(**request.param)
    yield running
    running.close()
    patch.undo()


requests = st.tuples(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=60),  # the opening, which prompts share
    st.integers(0, 40),  # how much of a family's long text follows
    st.sampled_from(["", "a", "b", "c"]),  # the session
    st.booleans(),  # streamed
    st.sampled_from([4, BUFFERED]),
    st.sampled_from([0.0, 0.5, 30.0]),  # seconds since the request before
)


@examples(60)
@given(sequence=st.lists(requests, min_size=1, max_size=6))
def test_the_same_request_on_the_same_state_goes_to_the_same_target(
    pair: Pair, sequence: list[tuple[list[str], int, str, bool, int, float]]
) -> None:
    for opening, more, session, stream, mode, pause_s in sequence:
        text = " ".join(opening) + " and on it goes" * more
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": stream}
        headers = [("x-session-id", session)] if session else []
        proxied, picked = pair.ask(json.dumps(body).encode(), headers, mode, pause_s)
        assert proxied[0] == 200, proxied
        assert proxied == picked
