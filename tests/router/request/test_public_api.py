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
from router.features.tenants.ledger import Ledger
from router.features.tenants.meter import Meter
from router.features.tenants.stages import TenantStages
from router.features.tenants.tenant_tables import TenantTables
from router.features.tenants.usage_book import UsageBook
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.proxy.call import ClientDisconnected, ClientRequest
from router.request.ops_api import MetricsAccess, metrics_app, ops_app
from router.request.public_api import PublicApi, RequestApi
from router.request.public_paths import LOAD_ROUTED, PATHS, PublicPath
from router.request.services import RequestPath, Services
from router.scheduling.scheduler import Scheduler
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.page import MetricsPage
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import RouterSnapshot
from router.tenants.directory import TenantDirectory
from router.tenants.tenant import Tenant
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

    def __init__(self, api: Api, services: Services) -> None:
        super().__init__(services)
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
        self.fleet = fleet = Fleet(schema.FleetConfig())
        fleet.join(schema.InstanceConfig(url="http://a:1", name="a"))
        fleet.mark_ready("a", [ModelCard("m", "/models/m", None, 8192), ModelCard("lora", "/l", "m", None)], [0])
        self.metrics = Metrics(lambda model: True, lambda engine: True)
        clock, self.usage = ManualClock(wall=1_700_000_000.9), UsageBook()
        ledger = Ledger(PricesConfig(), clock, "")
        tables = TenantTables(self.metrics.counter, self.metrics.model_label, ())
        limits = TenantStages(Meter(ledger, self.usage, tables, lambda model: None, clock))

        def identify(call: ClientRequest) -> Tenant:
            assert tenants is not None
            return tenants.identify(call.fields, trusted=call.proxied, now_wall_s=clock.wall())

        services = some_services(
            config=schema.Config(edge=EdgeConfig.model_validate(edge)),
            clock=clock,
            metrics=self.metrics,
            identify=None if tenants is None else identify,
            scheduler=OnlyFleet(fleet),
            path=RequestPath((), (), (), (), (limits.on_refusal,), (limits.filter_cards,)),
        )
        self.api = PublicApi(FakeRoutes(self, services), self.ops)

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
        families = MetricsPage(self.metrics, RouterSnapshot()).collect()
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return {tuple(sample.labels.values()): sample.value for sample in samples if sample.value}


PROMPTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("path", [*PROMPTS, *sorted(LOAD_ROUTED)])
async def test_what_is_on_the_list_comes_in_by_post_only(path: str) -> None:
    api = Api()
    assert (await api.ask("POST", path)).status == 200
    assert api.came == [("route", path)]
    for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
        answer = await api.ask(method, path)
        assert (answer.status, answer.headers[b"allow"]) == (405, b"POST")
    assert len(api.came) == 1
    assert api.counted("warmroute_errors_total") == {(path, "method_not_allowed"): 5}


@pytest.mark.parametrize("entry", [entry for entry in PATHS if entry.placed != "operation"])
@pytest.mark.parametrize(
    "method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "get"]
)
async def test_every_path_takes_its_methods_and_no_other(entry: PublicPath, method: str) -> None:
    path = entry.path.replace("{id}", "resp_1").replace("{model}", "m")
    api = Api()
    answer = await api.ask(method, path)
    if method in entry.methods:
        assert answer.status == 200
        return
    assert (answer.status, answer.headers[b"allow"]) == (405, ", ".join(entry.methods).encode())
    if method != "HEAD":
        assert answer.json["error"]["message"] == f"{path} takes {' and '.join(entry.methods)}, not {method}"
    assert api.came == []
    assert api.counted("warmroute_requests_total") == {(entry.path, "other", "4xx"): 1}


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
    api = Api(
        extra_endpoints=[
            {"path": "/classify"},
            {"path": "/version", "method": "GET"},
            {"path": "/v1/embeddings", "method": "GET"},
            {"path": "/v1/models", "method": "POST"},
        ]
    )
    came = [("POST", "/classify"), ("GET", "/version"), ("GET", "/v1/embeddings"), ("POST", "/v1/embeddings")]
    for method, path in [*came, ("POST", "/v1/models")]:
        assert (await api.ask(method, path)).status == 200
    assert api.came == [("route", path) for _, path in [*came, ("POST", "/v1/models")]]
    assert (await api.ask("POST", "/version")).headers[b"allow"] == b"GET"
    assert (await api.ask("PUT", "/v1/embeddings")).headers[b"allow"] == b"POST, GET"
    assert (await api.ask("GET", "/v1/models")).json["object"] == "list"


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
        ("DELETE", "/v1/responses/resp_1", "resp_1"),
        ("GET", "/v1/responses/resp_1/input_items", "resp_1"),
        ("GET", "/v1/responses/resp_1/output_items", None),
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
    assert api.counted("warmroute_requests_total") == {("/v1/models", "other", "2xx"): 1}


async def test_one_model() -> None:
    api = Api()
    answer = await api.ask("GET", "/v1/models/lora")
    assert (answer.status, answer.headers[b"content-type"]) == (200, b"application/json")
    (card,) = [card for card in (await api.ask("GET", "/v1/models")).json["data"] if card["id"] == "lora"]
    assert answer.json == card
    for name in ("other", "Lora", "lora/", "org/lora", "lora\n", "a" * 512):
        answer = await api.ask("GET", f"/v1/models/{name}")
        assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found"), name
        assert answer.json["error"]["param"] == "model"
    for path in ("/v1/models/", "/v1/models/" + "a" * 513):
        assert (await api.ask("GET", path)).json["error"]["code"] == "unknown_path"


async def test_a_models_name_may_have_slashes() -> None:
    api = Api()
    api.fleet.mark_ready("a", [ModelCard("org/m:1", None, None, None)], [0])
    assert (await api.ask("GET", "/v1/models/org/m:1")).json["id"] == "org/m:1"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m"])
async def test_a_head_is_the_answer_without_its_body(path: str) -> None:
    api = Api()
    head, whole = await api.ask("HEAD", path), await api.ask("GET", path)
    assert (head.status, head.headers, head.body) == (200, whole.headers, b"")


@pytest.mark.parametrize("path", PROMPTS)
async def test_a_websocket_is_told_to_use_post(path: str) -> None:
    """So that Codex, which tries one first, goes on over HTTP."""
    api = Api()
    answer = await api.ask("GET", path, sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==")
    assert (answer.status, answer.headers[b"upgrade"], answer.headers[b"connection"]) == (426, b"HTTP/1.1", b"upgrade")
    assert "POST" in answer.json["error"]["message"]
    assert (await api.ask("POST", path, sec_websocket_key="x")).status == 200
    assert (await api.ask("GET", "/v1/models", sec_websocket_key="x")).status == 200
    assert (await api.ask("GET", "/nowhere", sec_websocket_key="x")).status == 404


# pages of other origins


async def test_a_preflight_needs_no_key_and_no_engine() -> None:
    api = Api(tenants=some_tenants(), cors_origins=["*"])
    asked = {"origin": "https://a.example", "access_control_request_method": "POST"}
    for path in ("/v1/chat/completions", "/v1/models", "/nowhere"):
        answer = await api.ask("OPTIONS", path, **asked, access_control_request_headers="authorization, x-a")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers[b"access-control-allow-origin"] == b"*"
        assert b"POST" in answer.headers[b"access-control-allow-methods"].split(b", ")
        assert answer.headers[b"access-control-allow-headers"] == b"authorization, x-a"
        assert answer.headers[b"access-control-max-age"] == b"600"
    assert api.came == []
    assert sum(api.counted("warmroute_requests_total").values()) == 3
    assert (await api.ask("OPTIONS", "/v1/models", origin="https://a.example")).status == 401  # no preflight
    assert (await api.ask("OPTIONS", "/v1/models", access_control_request_method="GET")).status == 401


async def test_pages_may_read_every_answer() -> None:
    api = Api(cors_origins=["*"])
    for method, path in (("GET", "/v1/models"), ("GET", "/nowhere"), ("PUT", "/v1/models")):
        answer = await api.ask(method, path, origin="https://a.example")
        assert answer.headers[b"access-control-allow-origin"] == b"*", path
        assert b"access-control-allow-origin" not in (await api.ask(method, path)).headers
    api.outcome = NoTarget("nobody")
    answer = await api.ask("POST", "/v1/completions", origin="https://a.example")
    assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (503, b"*")
    api.outcome = None
    answer = await api.ask("POST", "/v1/completions", origin="https://a.example")
    assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (200, b"*")


async def test_the_operator_may_list_origins() -> None:
    api = Api(cors_origins=["https://a.example", "http://b.example:3000"])
    asked = {"access_control_request_method": "POST"}
    answer = await api.ask("OPTIONS", "/v1/completions", origin="http://b.example:3000", **asked)
    assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (200, b"http://b.example:3000")
    assert answer.headers[b"vary"] == b"origin"
    answer = await api.ask("OPTIONS", "/v1/completions", origin="https://b.example:3000", **asked)
    assert (answer.status, answer.json["error"]["code"]) == (400, "origin_not_allowed")
    answer = await api.ask("GET", "/v1/models", origin="null")
    assert (answer.status, b"access-control-allow-origin" in answer.headers) == (200, False)


async def test_by_default_no_page_may() -> None:
    api = Api()
    asked = {"origin": "https://a.example", "access_control_request_method": "POST"}
    assert (await api.ask("OPTIONS", "/v1/completions", **asked)).status == 405
    answer = await api.ask("GET", "/v1/models", origin="https://a.example")
    assert b"access-control-allow-origin" not in answer.headers


# a fault of the router's own


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_crash_is_counted_and_has_the_clients_form(recorded: bool) -> None:
    api = Api()
    api.outcome, api.recorded = ZeroDivisionError(), recorded
    for path, kind in (("/v1/completions", "server_error"), ("/v1/messages", "api_error")):
        exchange = an_exchange(path=path)
        with pytest.raises(ZeroDivisionError):
            await api.api.answer(exchange)
        exchange.answer(*api.api.on_crash(exchange))
        answer = Answer(sent(exchange))
        assert (answer.status, answer.json["error"]["type"]) == (500, kind)
        assert api.counted("warmroute_errors_total")[path, "internal_error"] == 1
        assert ((path, "other", "5xx") in api.counted("warmroute_requests_total")) is not recorded


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
    assert (await api.ask("GET", "/v1/models/lora", x_api_key=KEY)).status == 200
    assert (await api.ask("GET", "/v1/models/m", x_api_key=KEY)).json["error"]["code"] == "model_not_found"


async def test_a_refusal_speaks_the_clients_dialect() -> None:
    api = Api()
    api.outcome = TooBusy("full", retry_after_s=3)
    answer = await api.ask("POST", "/v1/messages")
    assert (answer.status, answer.headers[b"retry-after"]) == (429, b"3")
    assert answer.json["type"] == "error"
    assert (await api.ask("GET", "/v1/models/x", anthropic_version="2023-06-01")).json["type"] == "error"
    assert (await api.ask("POST", "/v1/completions")).json["error"]["message"] == "full"
    assert api.counted("warmroute_errors_total") == {
        ("/v1/messages", "too_busy"): 1,
        ("/v1/completions", "too_busy"): 1,
        ("/v1/models/{model}", "not_found"): 1,
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


async def empty_page(form: PageForm) -> bytes:
    return MetricsPage(Metrics(lambda model: True, lambda engine: True), RouterSnapshot()).render(form)


def client(why_not: str | None = None) -> TestClient:
    return TestClient(ops_app(lambda: why_not, MetricsAccess(empty_page)))


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_operations_take_get_and_head(path: str) -> None:
    head, whole = client().head(path), client().get(path)
    assert (head.status_code, head.headers["content-type"]) == (200, whole.headers["content-type"])
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        answer = client().request(method, path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


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


def test_metrics_take_no_query_parameters_but_health_ignores_them() -> None:
    assert client().get("/metrics?name[]=x").status_code == 400
    assert client().get("/health?probe=1").status_code == 200


def test_metrics_may_need_a_token() -> None:
    access = MetricsAccess(empty_page, hashlib.sha256(b"secret").hexdigest())
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
    alone = TestClient(metrics_app(MetricsAccess(empty_page)))
    assert alone.get("/metrics").status_code == 200
    assert alone.get("/health").status_code == 404


def test_nothing_else_is_served() -> None:
    for path in ("/", "/docs", "/redoc", "/openapi.json", "/admin/instances"):
        answer = client().get(path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["type"] == "not_found_error"
