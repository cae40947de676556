"""What the public door lets in, and what it answers itself. The lines behind it only write down who came."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from router.clock import ManualClock
from router.config import schema
from router.config.sections.listeners import EdgeConfig
from router.errors import NoTarget, TooBusy
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.proxy.call import ClientDisconnected, ClientRequest
from router.request import public_api
from router.request.public_api import LOAD_ROUTED, PublicApi
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.state import RouterSnapshot
from tests.router.proxy.connections import an_exchange, said

KEY = "sk-one"
CLIENTS = {hashlib.sha256(KEY.encode()).hexdigest(): "somebody"}


class Answer:
    """What was written to the client, taken apart."""

    def __init__(self, written: bytes) -> None:
        head, _, self.body = written.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        self.status = int(first.split()[1]) if first else None
        self.headers = dict(line.split(b": ", 1) for line in lines)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class House:
    """A door, and the lines behind it: `came` is who got in, `outcome` what becomes of them there."""

    def __init__(self, *, clients: dict[str, str] | None = None, **edge: Any) -> None:
        self.came: list[tuple[str, ...]] = []
        self.outcome: Exception | None = None
        self.recorded = False
        fleet = Fleet(schema.FleetConfig())
        fleet.join(schema.InstanceConfig(url="http://a:1", name="a"))
        fleet.mark_ready("a", [ModelCard("m", "/models/m", None, 8192), ModelCard("lora", "/l", "m", None)], [0])
        self.metrics = Metrics(lambda: RouterSnapshot((), (), {}, {}), lambda model: True)
        rooms = SimpleNamespace(
            config=schema.Config(edge=EdgeConfig.model_validate(edge)),
            clock=ManualClock(wall=1_700_000_000.9),
            metrics=self.metrics,
            core=SimpleNamespace(fleet=fleet),
        )
        self.door = PublicApi(rooms, self.ops, clients)  # type: ignore[arg-type]

    async def ops(self, scope: Any, receive: Any, send: Any) -> None:
        self.came.append(("ops", scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def route(self, call: ClientRequest, rooms: Any) -> None:
        await self.line(call, "route", call.path)

    async def route_stored(self, call: ClientRequest, response_id: str, rooms: Any) -> None:
        await self.line(call, "stored", response_id)

    async def line(self, call: ClientRequest, *came: str) -> None:
        self.came.append(came)
        call.recorded = self.recorded
        if self.outcome is not None:
            raise self.outcome
        call.answer(200, [], b"{}")

    async def ask(self, method: str, path: str, **headers: str) -> Answer:
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        exchange = an_exchange(*given, method=method, path=path)
        await self.door.answer(exchange)
        return Answer(said(exchange))

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        samples = [s for family in self.metrics.page().collect() for s in family.samples if s.name == name]
        return {tuple(sample.labels.values()): sample.value for sample in samples if sample.value}


@pytest.fixture
def open_house(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def make(**options: Any) -> House:
        house = House(**options)
        monkeypatch.setattr(public_api, "route", house.route)
        monkeypatch.setattr(public_api, "route_stored", house.route_stored)
        return house

    return make


PROMPTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("path", [*PROMPTS, *sorted(LOAD_ROUTED)])
async def test_what_is_on_the_list_comes_in_by_post_only(open_house: Any, path: str) -> None:
    house = open_house()
    assert (await house.ask("POST", path)).status == 200
    assert house.came == [("route", path)]
    for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert (await house.ask(method, path)).status == 404
    assert len(house.came) == 1


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v1", "/v1/", "/v1/chat/completions/", "/v1//completions", "/V1/completions", "/v1/load_lora_adapter",
     "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/reset_prefix_cache", "/invocations", "/pause", "/server_info",
     "/admin/records", "/docs", "/openapi.json", "/health/", "/v1/completions\n", "/v1/completions/../sleep"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_not_on_the_list_is_404(open_house: Any, method: str, path: str) -> None:
    house = open_house()
    answer = await house.ask(method, path)
    assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_path")
    assert house.came == []
    assert house.counted("warmroute_requests_total") == {("other", "other", "4xx"): 1}


async def test_what_the_operator_adds_to_the_list_comes_in(open_house: Any) -> None:
    house = open_house(extra_endpoints=[{"path": "/v2/rerank"}, {"path": "/version", "method": "GET"}])
    assert (await house.ask("POST", "/v2/rerank")).status == 200
    assert (await house.ask("GET", "/version")).status == 200
    assert (await house.ask("POST", "/version")).status == 404
    assert house.came == [("route", "/v2/rerank"), ("route", "/version")]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_operations_need_no_key(open_house: Any, path: str) -> None:
    house = open_house(clients=CLIENTS)
    await house.ask("GET", path)
    assert house.came == [("ops", path)]


@pytest.mark.parametrize(
    ("method", "path", "let_in"),
    [
        ("GET", "/v1/responses/resp_1-a", "resp_1-a"),
        ("POST", "/v1/responses/resp_1/cancel", "resp_1"),
        ("POST", "/v1/responses/resp_1", None),
        ("GET", "/v1/responses/resp_1/cancel", None),
        ("DELETE", "/v1/responses/resp_1", None),
        ("GET", "/v1/responses/", None),
        ("GET", "/v1/responses/a/b", None),
        ("GET", "/v1/responses/..", None),
        ("GET", "/v1/responses/a\n", None),
        ("GET", "/v1/responses/" + "a" * 128, "a" * 128),
        ("GET", "/v1/responses/" + "a" * 129, None),
    ],
)
async def test_stored_responses(open_house: Any, method: str, path: str, let_in: str | None) -> None:
    house = open_house()
    answer = await house.ask(method, path)
    assert house.came == ([] if let_in is None else [("stored", let_in)])
    assert answer.status == (404 if let_in is None else 200)


async def test_models_are_the_fleets(open_house: Any) -> None:
    house = open_house()
    answer = await house.ask("GET", "/v1/models")
    assert (answer.status, answer.headers[b"content-type"]) == (200, b"application/json")
    assert answer.json["object"] == "list"
    assert [(card["id"], card["object"], card["created"]) for card in answer.json["data"]] == [
        ("m", "model", 1_700_000_000),
        ("lora", "model", 1_700_000_000),
    ]
    assert (await house.ask("POST", "/v1/models")).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x_api_key": KEY},
        {"authorization": "Basic abc", "x_api_key": KEY},
    ],
)
async def test_who_has_a_key_comes_in(open_house: Any, headers: dict[str, str]) -> None:
    house = open_house(clients=CLIENTS)
    assert (await house.ask("POST", "/v1/completions", **headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": KEY},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {next(iter(CLIENTS))}"},  # the hash is no key
        {"authorization": "Bearer wrong", "x_api_key": KEY},
        {"x_api_key": ""},
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/nothing/here"])
async def test_who_has_none_does_not(open_house: Any, headers: dict[str, str], path: str) -> None:
    house = open_house(clients=CLIENTS)
    answer = await house.ask("POST", path, **headers)
    assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers[b"www-authenticate"] == b"Bearer"
    assert house.came == []


async def test_a_refusal_speaks_the_clients_dialect(open_house: Any) -> None:
    house = open_house()
    house.outcome = TooBusy("full", retry_after_s=3)
    answer = await house.ask("POST", "/v1/messages")
    assert (answer.status, answer.headers[b"retry-after"]) == (429, b"3")
    assert answer.json["type"] == "error"
    assert (await house.ask("POST", "/v1/completions")).json["error"]["message"] == "full"
    assert house.counted("warmroute_errors_total") == {
        ("/v1/messages", "too_busy"): 1,
        ("/v1/completions", "too_busy"): 1,
    }


async def test_what_has_a_record_is_not_counted_again(open_house: Any) -> None:
    house = open_house()
    house.outcome, house.recorded = NoTarget("nobody"), True
    assert (await house.ask("POST", "/v1/completions")).status == 503
    assert house.counted("warmroute_requests_total") == {}


async def test_a_client_that_left_gets_no_answer_and_is_counted(open_house: Any) -> None:
    house = open_house()
    house.outcome = ClientDisconnected()
    assert (await house.ask("POST", "/v1/completions")).status is None
    assert house.counted("warmroute_errors_total") == {("/v1/completions", "client_gone"): 1}
