"""What the public API accepts, and what it answers itself. The routes behind it only record their calls."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from router.clock import ManualClock
from router.config import schema
from router.config.sections.clients import ClientsConfig, PricesConfig
from router.config.sections.listeners import EdgeConfig
from router.errors import NoTarget, TooBusy
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.proxy.call import ClientDisconnected, ClientRequest
from router.request.metering import Meter
from router.request.ops_api import MetricsAccess, metrics_app, ops_app
from router.request.public_api import LOAD_ROUTED, PublicApi, RequestApi
from router.request.services import Services
from router.scheduling.scheduler import Scheduler
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import RouterSnapshot
from router.tenants.directory import TenantDirectory
from router.tenants.ledger import Ledger
from router.tenants.usage_book import UsageBook
from tests.router.proxy.connections import an_exchange, sent
from tests.router.request.some_services import some_services

KEY = "sk-one"
KEY_HASH = hashlib.sha256(KEY.encode()).hexdigest()


def some_tenants(service_classes: dict[str, Any] | None = None) -> TenantDirectory:
    """Tenants of whom `somebody` has the key."""
    config = ClientsConfig.model_validate({"keys_file": "keys", "service_classes": service_classes or {}})
    tenants = TenantDirectory(config)
    tenants.set_keys(f"{KEY_HASH} somebody".encode(), "keys")
    return tenants


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


class OnlyFleet(Scheduler):
    """A scheduler that has nothing but a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet


class FakeRoutes(RequestApi):
    """Answers with the routes of `api`."""

    def __init__(self, api: Api, services: Services, tenants: TenantDirectory | None) -> None:
        super().__init__(services, tenants)
        self._api = api

    def route(self, call: ClientRequest) -> Awaitable[None]:
        return self._api.line(call, "route", call.path)

    def route_stored(self, call: ClientRequest, response_id: str) -> Awaitable[None]:
        return self._api.line(call, "stored", response_id)


class Api:
    """A public API with fake routes: `came` lists their calls, `outcome` is what they raise."""

    def __init__(self, *, tenants: TenantDirectory | None = None, **edge: Any) -> None:
        self.came: list[tuple[str, ...]] = []
        self.outcome: Exception | None = None
        self.recorded = False
        fleet = Fleet(schema.FleetConfig())
        fleet.join(schema.InstanceConfig(url="http://a:1", name="a"))
        fleet.mark_ready("a", [ModelCard("m", "/models/m", None, 8192), ModelCard("lora", "/l", "m", None)], [0])
        self.metrics = Metrics(lambda: RouterSnapshot(), lambda model: True)
        clock, self.usage = ManualClock(wall=1_700_000_000.9), UsageBook()
        services = some_services(
            config=schema.Config(edge=EdgeConfig.model_validate(edge)),
            clock=clock,
            meter=Meter(Ledger(PricesConfig(), clock, ""), self.usage, self.metrics.tenants, lambda model: None, clock),
            metrics=self.metrics,
            tracing=None,
            scheduler=OnlyFleet(fleet),
            models=None,
            adapters=None,
        )
        self.api = PublicApi(FakeRoutes(self, services, tenants), self.ops)

    async def ops(self, scope: Any, receive: Any, send: Any) -> None:
        self.came.append(("ops", scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def line(self, call: ClientRequest, *came: str) -> None:
        self.came.append(came)
        call.recorded = self.recorded
        if self.outcome is not None:
            raise self.outcome
        call.answer(200, [], b"{}")

    async def ask(self, method: str, path: str, **headers: str) -> Answer:
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        exchange = an_exchange(*given, method=method, path=path)
        await self.api.answer(exchange)
        return Answer(sent(exchange))

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        samples = [s for family in self.metrics.page().collect() for s in family.samples if s.name == name]
        return {tuple(sample.labels.values()): sample.value for sample in samples if sample.value}


PROMPTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("path", [*PROMPTS, *sorted(LOAD_ROUTED)])
async def test_what_is_on_the_list_comes_in_by_post_only(path: str) -> None:
    api = Api()
    assert (await api.ask("POST", path)).status == 200
    assert api.came == [("route", path)]
    for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert (await api.ask(method, path)).status == 404
    assert len(api.came) == 1


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v1", "/v1/", "/v1/chat/completions/", "/v1//completions", "/V1/completions", "/v1/load_lora_adapter",
     "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/reset_prefix_cache", "/invocations", "/pause", "/server_info",
     "/admin/records", "/docs", "/openapi.json", "/health/", "/v1/completions\n", "/v1/completions/../sleep"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_not_on_the_list_is_404(method: str, path: str) -> None:
    api = Api()
    answer = await api.ask(method, path)
    assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_path")
    assert api.came == []
    assert api.counted("warmroute_requests_total") == {("other", "other", "4xx"): 1}


async def test_what_the_operator_adds_to_the_list_comes_in() -> None:
    api = Api(extra_endpoints=[{"path": "/v2/rerank"}, {"path": "/version", "method": "GET"}])
    assert (await api.ask("POST", "/v2/rerank")).status == 200
    assert (await api.ask("GET", "/version")).status == 200
    assert (await api.ask("POST", "/version")).status == 404
    assert api.came == [("route", "/v2/rerank"), ("route", "/version")]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_operations_need_no_key(path: str) -> None:
    api = Api(tenants=some_tenants())
    await api.ask("GET", path)
    assert api.came == [("ops", path)]


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
async def test_stored_responses(method: str, path: str, let_in: str | None) -> None:
    api = Api()
    answer = await api.ask(method, path)
    assert api.came == ([] if let_in is None else [("stored", let_in)])
    assert answer.status == (404 if let_in is None else 200)


async def test_models_are_the_fleets() -> None:
    api = Api()
    answer = await api.ask("GET", "/v1/models")
    assert (answer.status, answer.headers[b"content-type"]) == (200, b"application/json")
    assert answer.json["object"] == "list"
    assert [(card["id"], card["object"], card["created"]) for card in answer.json["data"]] == [
        ("m", "model", 1_700_000_000),
        ("lora", "model", 1_700_000_000),
    ]
    assert (await api.ask("POST", "/v1/models")).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x_api_key": KEY},
        {"authorization": "Basic abc", "x_api_key": KEY},
    ],
)
async def test_a_client_with_a_key_is_served(headers: dict[str, str]) -> None:
    api = Api(tenants=some_tenants())
    assert (await api.ask("POST", "/v1/completions", **headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": KEY},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY_HASH}"},  # the hash is no key
        {"authorization": "Bearer wrong", "x_api_key": KEY},
        {"x_api_key": ""},
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/nothing/here"])
async def test_a_client_without_a_valid_key_is_refused(headers: dict[str, str], path: str) -> None:
    api = Api(tenants=some_tenants())
    answer = await api.ask("POST", path, **headers)
    assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers[b"www-authenticate"] == b"Bearer"
    assert api.came == []


async def test_models_are_those_that_the_tenant_may_use() -> None:
    api = Api(tenants=some_tenants({"default": {"models": ["lo*"]}}))
    answer = await api.ask("GET", "/v1/models", x_api_key=KEY)
    assert [card["id"] for card in answer.json["data"]] == ["lora"]


async def test_a_refusal_speaks_the_clients_dialect() -> None:
    api = Api()
    api.outcome = TooBusy("full", retry_after_s=3)
    answer = await api.ask("POST", "/v1/messages")
    assert (answer.status, answer.headers[b"retry-after"]) == (429, b"3")
    assert answer.json["type"] == "error"
    assert (await api.ask("POST", "/v1/completions")).json["error"]["message"] == "full"
    assert api.counted("warmroute_errors_total") == {
        ("/v1/messages", "too_busy"): 1,
        ("/v1/completions", "too_busy"): 1,
    }


async def test_what_has_a_record_is_not_counted_again() -> None:
    api = Api()
    api.outcome, api.recorded = NoTarget("nobody"), True
    assert (await api.ask("POST", "/v1/completions")).status == 503
    assert api.counted("warmroute_requests_total") == {}


async def test_a_client_that_left_gets_no_answer_and_is_counted() -> None:
    api = Api()
    api.outcome = ClientDisconnected()
    assert (await api.ask("POST", "/v1/completions")).status is None
    assert api.counted("warmroute_errors_total") == {("/v1/completions", "client_gone"): 1}


# health, readiness and the metrics page


def client(why_not: str | None = None) -> TestClient:
    return TestClient(
        ops_app(lambda: why_not, MetricsAccess(Metrics(lambda: RouterSnapshot(), lambda model: True).scrape))
    )


def test_health_does_not_care_about_engines() -> None:
    answer = client("no engine is ready").get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready_when_nothing_speaks_against_it() -> None:
    answer = client().get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_not_ready_says_why() -> None:
    answer = client("no engine is ready").get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "not ready", "reason": "no engine is ready"})


def test_metrics_are_prometheus_text() -> None:
    answer = client().get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "\nwarmroute_in_flight_requests 0.0\n" in answer.text


def test_metrics_may_need_a_token() -> None:
    access = MetricsAccess(
        Metrics(lambda: RouterSnapshot(), lambda model: True).scrape, hashlib.sha256(b"secret").hexdigest()
    )
    for app in (ops_app(lambda: None, access), metrics_app(access)):
        http = TestClient(app)
        for given in ("", "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "secret", "Bearer secret2"):
            answer = http.get("/metrics", headers={"authorization": given} if given else {})
            assert answer.status_code == 401, given
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "warmroute_" not in answer.text
        for given in ("Bearer secret", "bearer  secret "):
            assert http.get("/metrics", headers={"authorization": given}).status_code == 200


def test_metrics_with_a_listener_of_their_own_are_nowhere_else() -> None:
    assert TestClient(ops_app(lambda: None, None)).get("/metrics").status_code == 404
    alone = TestClient(metrics_app(MetricsAccess(Metrics(lambda: RouterSnapshot(), lambda model: True).scrape)))
    assert alone.get("/metrics").status_code == 200
    assert alone.get("/health").status_code == 404


def test_nothing_else_is_served() -> None:
    for path in ("/", "/docs", "/redoc", "/openapi.json", "/admin/instances"):
        answer = client().get(path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["type"] == "not_found_error"
