"""The dashboard and the alerting rules in a real Prometheus, which scrapes two routers under load and under faults.

Every expression can be evaluated and gives something, but for those in `NEVER` and `RARELY`, with reasons. One
Prometheus has the default `honor_labels: false`, the other `honor_labels: true`: none of our labels is one that
Prometheus sets, so both must show the same. That a rule fires only on its fault is tested in `test_alerts.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop

from router.lab.emulator.mooncake_master import MasterFaults, MasterOptions, MooncakeMaster
from router.lab.emulator.options import EngineFaults
from router.lab.local_stack.guard import ProcessGuard
from router.lab.local_stack.preflight import free_ports
from tests.e2e.chats import PATH, Chat
from tests.e2e.conftest import LOCAL, Json, Router, _router
from tests.fakes.engines import FakeEngine, engine
from tests.fakes.otlp import receiver
from tests.fakes.webhook import Webhook
from tests.gateway.alerts import read_rules
from tests.gateway.conftest import need
from tests.gateway.prometheus import JOB, Labels, Prometheus
from tests.paths import CONFIGS
from tests.patience import PATIENCE_S

DASHBOARDS = sorted((CONFIGS / "grafana").glob("*.json"))
VARIABLES = {"$__rate_interval": "10s", "$model": ".+", "$engine": ".+", "$job": ".+"}
# as Grafana fills them in, but for `.*`, which fits series without the label, too
SECRET = "WARMROUTE_TEST_REPLICAS"
POLICIES: Json = {
    "warm": {"scorers": [{"name": "expected_ttft"}]},
    "calm": {"scorers": [{"name": "least_requests"}]},
    "dice": {"scorers": [{"name": "random"}]},
}
SCRAPES = 8  # of load, and of each round of faults: some more than a rate needs

NEVER = {  # alerts, and metrics of panels: nothing in this test can cause them
    "there are no prefill engines": {
        "warmroute_prefill_halves_total",
        "warmroute_unpaired_requests_total",
        "WarmrouteUnpaired",
    },
    "there is no gateway": {"WarmroutePickerMoved"},
    "no model is ever started, and only waits that end well are timed": {
        "warmroute_wake_wait_seconds_bucket",
    },
    "no engine sends what cannot be read, or more than the router takes in": {
        "warmroute_engine_limit_total",
        "WarmrouteEngineDistrusted",
        "WarmrouteStreamDecodeErrors",
    },
    "the model has only full attention": {
        "warmroute_stream_skipped_events_total",
    },
    "the tokenizer is right and incremental": {
        "warmroute_tokenizer_incremental",
        "WarmrouteTokenizerMismatch",
    },
    "the engines name the pool's blocks as the router does": {"WarmroutePoolNamesRefuted"},
    "all plug-ins work, and the experiment has no guard": {
        "warmroute_policy_faults_total",
        "WarmroutePolicyFaults",
        "WarmrouteShadowOut",
        "WarmrouteArmRolledBack",
    },
    "no client opens more connections than it may": {
        "warmroute_client_connections_refused_total",
        "WarmrouteConnectionsRefused",
    },
    "files can be written": {"WarmrouteAuditFailing", "WarmrouteDecisionLogDropping"},
    "the configuration is the only source of instances, and it is the same for both routers": {
        "warmroute_discovery_age_seconds",
        "WarmrouteDiscoveryStale",
    },
    "the routers stay": {"WarmrouteRouterRestarting"},
    "it compares with the day before": {"WarmrouteHitShareFell"},
}
RARELY = {  # only where the machine is slow, or when things happen at the same moment
    "prompts of many requests do not begin alike, so that little is loaded ahead": {
        "warmroute_preload_requests_total",
        "warmroute_preload_settled_tokens_total",
        "warmroute_preload_tokens_total",
    },
    "the slow engine gets few prompts, and not for long": {
        "warmroute_engine_slowdown_ratio",
        "WarmrouteEngineSlow",
        "WarmrouteEngineStuck",
        "WarmrouteSlowFirstToken",
    },
    "trust in events is lost for a moment only": {"WarmrouteStreamUntrusted"},
    "the load is light": {
        "WarmrouteAdmissionRefusing",
        "WarmrouteFleetFull",
        "WarmrouteOpenFiles",
        "WarmrouteRouterSlow",
        "WarmrouteShedding",
    },
    "events are lost for seconds, but not wrong": {
        "WarmroutePredictionsBroken",
        "WarmrouteStreamContradicted",
        "WarmrouteStreamSilent",
    },
    "the pool is lost when few requests need it": {"WarmroutePoolUnknown"},
    "for a moment after a switch or a start": {
        "WarmrouteInstanceJoining",
        "WarmrouteReplicaEngines",
        "WarmrouteReplicaPolicies",
        "WarmrouteReplicaUnheard",
        "WarmrouteRouterGone",
    },
}


class Watched(NamedTuple):
    """What one Prometheus saw."""

    series: dict[str, list[Labels]]  # by expression, or name of an alert
    engines: float  # as counted by the panel of their states
    errors: list[str]  # expressions and rules that cannot be evaluated
    labels: list[str]  # names of all labels


@pytest.fixture(scope="module")
def watched(guard: ProcessGuard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Watched]]:
    """What was seen, by `honor_labels`."""
    need("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, "0123456789abcdef" * 2)
        yield uvloop.run(watch(folder, guard))


async def watch(folder: Path, guard: ProcessGuard) -> dict[bool, Watched]:
    async with run_fleet(folder) as fleet:
        addresses = [router.url.removeprefix("http://") for router in fleet.routers]
        async with (
            Prometheus.run({JOB: addresses}, folder, guard) as usual,
            Prometheus.run({JOB: addresses}, folder, guard, honor_labels=True) as honest,
        ):
            since = time.time()
            async with Load(fleet.routers):
                await scraped(usual, honest)
                await play_faults(fleet, usual, honest)
            return {honors: await look(one, since) for honors, one in ((False, usual), (True, honest))}


async def scraped(*all_of: Prometheus) -> None:
    """Wait until each Prometheus has scraped each router `SCRAPES` times more."""
    wanted = [await one.scrapes() + SCRAPES for one in all_of]
    async with asyncio.timeout(PATIENCE_S + 10 * SCRAPES):
        for one, count in zip(all_of, wanted, strict=True):
            while await one.scrapes() < count:  # noqa: ASYNC110
                await asyncio.sleep(0.2)


async def look(one: Prometheus, since: float) -> Watched:
    """Evaluate all expressions over the whole time."""
    until, series, errors = time.time(), {}, []
    for name, expression in expressions().items():
        try:
            series[name] = await one.series(fill_in(expression), since, until)
        except AssertionError as wrong:
            errors.append(str(wrong))
    groups = (await one.read("rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(read_rules())
    errors += [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] != "ok"]
    (by_state,) = [name for name in legends() if parts(name) == {"warmroute_instance_state"} and "sum" in name]
    states = await one.read("query", query=fill_in(by_state))
    engines = sum(float(state["value"][1]) for state in states["result"])
    return Watched(series, engines, errors, await one.read("labels"))


def expressions() -> dict[str, str]:
    """All expressions of alerts, by name, and of dashboards."""
    return {expression: expression for expression in legends()} | {rule.alert: rule.expr for rule in read_rules()}


def legends() -> dict[str, set[str]]:
    """The labels that the dashboards show of their expressions; a variable shows one of its metric."""
    found = {}
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                found[target["expr"]] = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = read_label_query(variable["query"]["query"])
                found[metric] = {label}
    return found


def read_label_query(query: str) -> tuple[str, str]:
    read = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert read is not None, query
    return read[1], read[2]


def parts(name: str) -> set[str]:
    """The name of an alert, or the metrics of a panel's expression."""
    return {name} if name.isalpha() else set(re.findall(r"warmroute_\w+", name))


def fill_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


# the fleet


class Fleet(NamedTuple):
    routers: list[Router]
    engines: list[FakeEngine]
    master: MooncakeMaster


@asynccontextmanager
async def run_fleet(folder: Path) -> AsyncIterator[Fleet]:
    """Two routers with most features in front of three engines, which share a pool."""
    ports = free_ports(2)
    peers = [f"127.0.0.1:{port}" for port in ports]
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(MooncakeMaster(MasterOptions()))
        hook = await stack.enter_async_context(Webhook())
        traces = stack.enter_context(receiver())
        options: Json = {"pool_url": master.url, "prefill_tokens_per_s": 20_000.0, "decode_ms_per_token": 2.0}
        fakes = [await stack.enter_async_context(engine(name=name, **options)) for name in "abc"]
        routers = []
        for number, port in enumerate(ports):
            own = folder / f"router-{number}"
            own.mkdir()
            routers.append(
                await stack.enter_async_context(
                    _router(
                        fakes,
                        fleet={"health": {"interval_s": 0.5, "timeout_s": 2.0, "failures": 2}},
                        policies=POLICIES,
                        experiment={"arms": {"calm": 50, "dice": 50}, "seed": 3, "shadows": ["warm"]},
                        admission={"enabled": True},
                        listen=LOCAL | {"trusted_proxies": ["127.0.0.1/32"]},
                        clients={"tenant_header": "x-tenant"},
                        pool={"masters": [master.url], "deadline_ms": 5000},
                        preload={"join": True, "drain": True},
                        tracing={"endpoint": traces.url},
                        records={"decision_log": {"folder": str(own / "decisions")}},
                        admin=LOCAL | {"audit_file": str(own / "audit.jsonl")},
                        wake={"models": {"cold-*": {"webhook": {"url": hook.url}}}, "wait_s": 2.0},
                        tokens={"token_id_passthrough": "auto"},
                        replicas={"peers": peers, "secret_env": SECRET, "host": "127.0.0.1", "port": port},
                    )
                )
            )
        for router in routers:
            router.http.headers["x-tenant"] = "team"
        yield Fleet(routers, fakes, master)


class Load:
    """Chats of several turns at both routers, and requests that are refused."""

    def __init__(self, routers: list[Router]) -> None:
        self._routers = routers
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        for number, router in enumerate(self._routers):
            self._tasks += [asyncio.create_task(self._talk(router, f"{number} {n}")) for n in range(4)]
            self._tasks.append(asyncio.create_task(self._ask_in_vain(router)))

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    async def _talk(self, router: Router, name: str) -> None:
        number = 0
        while True:
            number += 1
            chat = Chat(router, f"{name} {number}")
            for turn in range(4):
                await chat.turn(stream=turn % 2 == 1)

    async def _ask_in_vain(self, router: Router) -> None:
        while True:
            for model in ("unknown", "cold-one"):
                body: Json = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
                await router.post(PATH, body)


async def play_faults(fleet: Fleet, *all_of: Prometheus) -> None:
    """Several at a time, each at an engine of its own, while an operator switches policies and drains an engine."""
    admin, (a, b, c) = fleet.routers[0].admin, fleet.engines
    (await admin.post("/admin/activate", json={"policy": "calm"})).raise_for_status()
    assert (await admin.put("/admin/policies/wrong", content="scorers: [{name: nobody}]")).is_client_error
    (await admin.post(f"/admin/instances/{a.address}/drain")).raise_for_status()
    for faults in (
        {b: {"error_rate": 0.5}, c: {"die_mid_stream": 0.3, "clock_offset_s": -60.0}},
        {a: {"drop_events": 0.3}, b: {"refuse": True}, c: {"slow": 8.0}},
        {b: {"die_before_first_byte": 1.0}, c: {"die_before_first_byte": 1.0}},
        {a: {"unhealthy": True}, b: {"unhealthy": True}, c: {"unhealthy": True}},
    ):
        for fake, fault in faults.items():
            fake.faults(**fault)
        await scraped(*all_of)
        for fake in fleet.engines:
            fake.server.cores.apply_faults(EngineFaults())
        (await admin.post(f"/admin/instances/{a.address}/undrain")).raise_for_status()
        a.restart()
        fleet.master.faults = MasterFaults(standby=True)


# what was seen


@pytest.mark.parametrize("honors", [False, True], ids=["default", "honor_labels"])
def test_every_expression_can_be_evaluated(watched: dict[bool, Watched], honors: bool) -> None:
    assert watched[honors].errors == []


@pytest.mark.parametrize("honors", [False, True], ids=["default", "honor_labels"])
def test_no_expression_is_empty_without_a_reason(watched: dict[bool, Watched], honors: bool) -> None:
    empty = {name for name, series in watched[honors].series.items() if not series}
    never, rarely = set().union(*NEVER.values()), set().union(*RARELY.values())
    assert {name for name in empty if not parts(name) & (never | rarely)} == set()
    assert never - set().union(*map(parts, empty)) == set(), "the reason is wrong, or the name"
    assert rarely <= set().union(*map(parts, watched[honors].series))


@pytest.mark.parametrize("honors", [False, True], ids=["default", "honor_labels"])
def test_the_series_have_the_labels_that_are_shown(watched: dict[bool, Watched], honors: bool) -> None:
    for expression, labels in legends().items():
        for one in watched[honors].series[expression]:
            assert labels <= one.keys(), expression


@pytest.mark.parametrize("honors", [False, True], ids=["default", "honor_labels"])
def test_an_engine_counts_once_however_many_routers_report_it(watched: dict[bool, Watched], honors: bool) -> None:
    assert watched[honors].engines == 3


@pytest.mark.parametrize("honors", [False, True], ids=["default", "honor_labels"])
def test_no_label_of_ours_is_renamed(watched: dict[bool, Watched], honors: bool) -> None:
    assert {"instance", "job", "engine", "target"} <= set(watched[honors].labels)
    assert [name for name in watched[honors].labels if name.startswith("exported_")] == []
