"""The chart's picker modes: Envoy's configuration by the real Envoy, its drain, the pool, and probes."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from tests.gateway.chart import ENGINES, Files, Helm, Rendered, merge
from tests.gateway.cluster import free_port
from tests.gateway.conftest import need
from tests.gateway.install import program
from tests.gateway.test_chart import SECRETS

Json = dict[str, Any]

SOON_S = 20.0
PAUSE_S = 5.0  # of the hook, for requests that come on connections of before
THIN: Json = ENGINES | {"mode": "envoy"}
GATEWAY: Json = ENGINES | {"mode": "gateway"}
PROFILES = {
    "thin": THIN,
    "conforming": merge(THIN, {"envoy": {"profile": "conforming"}}),
    "thin with TLS": merge(THIN, {"secrets": {"tls": {"name": "front-tls"}}}),
}
PATIENT = merge(THIN, {"config": {"admission": {"enabled": True, "max_wait_s": 899.5}}})
PORT = {"type": "object", "required": ["number"], "additionalProperties": False,
        "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}}}  # fmt: skip
POOL_SPEC: Json = {  # of the kind InferencePool in the Gateway API inference extension v1.6.0
    "type": "object",
    "required": ["selector", "targetPorts"],
    "additionalProperties": False,
    "properties": {
        "appProtocol": {"enum": ["http", "kubernetes.io/h2c"]},
        "selector": {
            "type": "object",
            "required": ["matchLabels"],
            "additionalProperties": False,
            "properties": {"matchLabels": {"type": "object", "minProperties": 1, "maxProperties": 64}},
        },
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": PORT},
        "endpointPickerRef": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {
                "group": {"const": ""},
                "kind": {"type": "string"},
                "name": {"type": "string", "minLength": 1, "maxLength": 253},
                "port": PORT,
                "failureMode": {"enum": ["FailOpen", "FailClose"]},
            },
        },
    },
}


@pytest.fixture
def chart(helm: Path, tmp_path: Path) -> Helm:
    return Helm(helm, tmp_path)


def lay_out(rendered: Rendered, folder: Path) -> tuple[Files, Path]:
    """Return the pod's files, and Envoy's configuration among them, which names the others where they are."""
    files = Files(folder / "pod", rendered, SECRETS)
    place = files.folder / "etc/envoy"
    for file in (place / "config/..data").iterdir():
        file.write_text(file.read_text().replace("/etc/envoy/", f"{place}/"))
    return files, place / "config/envoy.yaml"


def check(file: Path) -> str:
    """Return what Envoy says against a configuration file; empty if it is valid."""
    command = [str(program("envoy")), "--mode", "validate", "--config-path", str(file), "--log-level", "error"]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("values", PROFILES.values(), ids=PROFILES.keys())
def test_envoy_takes_its_configuration(chart: Helm, values: Json, tmp_path: Path) -> None:
    need("envoy")
    _, file = lay_out(chart.template(values), tmp_path)
    assert check(file) == ""
    file.write_text(file.read_text().replace("ext_proc.v3.ExternalProcessor", "ext_proc.v3.InternalProcessor"))
    assert "InternalProcessor" in check(file)


@pytest.mark.parametrize(("values", "timeout"), [(THIN, "600s"), (PATIENT, "1200s")])
def test_envoy_waits_longer_than_admission(chart: Helm, values: Json, timeout: str) -> None:
    (filter_,) = [f for f in find_manager(chart.template(values))["http_filters"] if f["name"].endswith("ext_proc")]
    assert filter_["typed_config"]["message_timeout"] == timeout


def find_manager(rendered: Rendered) -> Json:
    """Return the settings of Envoy's HTTP connection manager."""
    envoy = yaml.safe_load(rendered.find("ConfigMap", "warmroute-envoy")["data"]["envoy.yaml"])
    (listener,) = envoy["static_resources"]["listeners"]
    return dict(listener["filter_chains"][0]["filters"][0]["typed_config"])


def test_the_profiles_differ_in_who_sees_answers(chart: Helm) -> None:
    thin, conforming = (find_manager(chart.template(PROFILES[name])) for name in ("thin", "conforming"))
    modes = [
        next(f for f in manager["http_filters"] if f["name"].endswith("ext_proc"))["typed_config"]["processing_mode"]
        for manager in (thin, conforming)
    ]
    assert [mode["response_body_mode"] for mode in modes] == ["STREAMED", "FULL_DUPLEX_STREAMED"]
    assert [mode["response_trailer_mode"] for mode in modes] == ["SKIP", "SEND"]
    assert ("access_log" in thin, "access_log" in conforming) == (True, False)


def test_a_client_cannot_name_an_engine(chart: Helm) -> None:
    (mutation,) = find_manager(chart.template(THIN))["early_header_mutation_extensions"]
    removed = {each["remove"] for each in mutation["typed_config"]["mutations"]}
    assert {"x-gateway-destination-endpoint", "x-prefiller-host-port"} <= removed


def test_ports_that_others_reach(chart: Helm) -> None:
    """Envoy's and the picker's own ports stay on loopback, or closed."""
    envoy = chart.template(merge(THIN, {"envoy": {"port": 8888}}))
    assert envoy.config["picker"]["host"] == "127.0.0.1"
    assert envoy.find("NetworkPolicy")["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 8888}]
    (port,) = envoy.find("Service")["spec"]["ports"]
    assert (port["targetPort"], envoy.container("envoy")["ports"][0]) == (
        "http",
        {"name": "http", "containerPort": 8888, "protocol": "TCP"},
    )
    gateway = chart.template(GATEWAY)
    assert gateway.find("NetworkPolicy")["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 9002}]
    (port,) = gateway.find("Service")["spec"]["ports"]
    assert (port["port"], port["appProtocol"]) == (9002, "kubernetes.io/h2c")


def test_the_pool_leads_to_the_picker(chart: Helm) -> None:
    rendered = chart.template(merge(GATEWAY, {"engines": {"ports": [8000, 8001]}}))
    pool = rendered.find("InferencePool")
    jsonschema.validate(pool["spec"], POOL_SPEC)
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    assert pool["spec"]["endpointPickerRef"]["name"] == rendered.find("Service")["metadata"]["name"]
    assert pool["spec"]["targetPorts"] == [{"number": 8000}, {"number": 8001}]
    assert rendered.config["fleet"]["kubernetes"] == {"namespace": "llm", "inference_pool": "warmroute"}
    assert {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"],
            "verbs": ["get", "list", "watch"]} in rendered.find("Role")["rules"]  # fmt: skip


def test_a_pool_that_exists_is_followed_and_not_made(chart: Helm) -> None:
    rendered = chart.template({"mode": "gateway", "inferencePool": {"create": False, "name": "qwen"}})
    assert "InferencePool" not in rendered.kinds
    assert rendered.config["fleet"]["kubernetes"]["inference_pool"] == "qwen"


@pytest.mark.parametrize(("version", "kind"), [("1.34.0", "grpc"), ("1.24.0", "grpc"), ("1.23.0", "httpGet")])
def test_a_picker_is_probed_by_grpc_where_the_kubelet_can(chart: Helm, version: str, kind: str) -> None:
    container = chart.template(GATEWAY, version=version).container()
    probes = [container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
    assert all(kind in probe for probe in probes)
    if kind == "grpc":
        services = [probe["grpc"] for probe in probes]
        assert services == [{"port": 9003, "service": name} for name in ("liveness", "liveness", "readiness")]


def test_a_changed_envoy_configuration_restarts_the_pods(chart: Helm) -> None:
    before, after = (chart.template(PROFILES[name]).find("Deployment") for name in ("thin", "conforming"))
    assert before != after
    live = chart.template(merge(THIN, {"config": {"active": "random"}}))
    assert live.find("Deployment") == before


@asynccontextmanager
async def slow_router(port: int, answer: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Something at the router's port that answers /health when it may. Yields what says that it was asked."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", port):
        yield asked


async def test_before_a_pod_ends_envoy_waits_for_open_requests(
    chart: Helm, envoy: Callable[[str], Any], tmp_path: Path
) -> None:
    """By the hooks of the rendered pod: Envoy's until no request is open, the router's as long as Envoy runs."""
    front, back, answer = free_port(), free_port(), asyncio.Event()
    wanted = merge(THIN, {"envoy": {"port": front}, "config": {"listen": {"port": back}}})
    configuration = chart.template(wanted).find("ConfigMap", "warmroute-envoy")["data"]["envoy.yaml"]
    async with slow_router(back, answer) as asked, httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
        async with envoy(configuration) as running:
            request = asyncio.create_task(client.get(f"http://127.0.0.1:{front}/health"))
            await asyncio.wait_for(asked.wait(), SOON_S)
            rendered = chart.template(merge(wanted, {"envoy": {"adminPort": running.admin.base_url.port}}))
            _, file = lay_out(rendered, tmp_path)
            of_envoy = await asyncio.create_subprocess_exec("bash", str(file.with_name("drain.sh")))
            hook = rendered.container()["lifecycle"]["preStop"]["exec"]["command"]
            of_router = await asyncio.create_subprocess_exec(sys.executable, *hook[1:])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(of_envoy.wait(), PAUSE_S + 1.5)
            answer.set()
            answered = await request
            assert (answered.status_code, answered.headers.get("connection")) == (200, "close")
            assert await asyncio.wait_for(of_envoy.wait(), SOON_S) == 0
            assert of_router.returncode is None
        assert await asyncio.wait_for(of_router.wait(), SOON_S) == 0


async def test_connections_are_bounded_as_the_proxy_s(chart: Helm, envoy: Callable[[str], Any]) -> None:
    front, wanted = free_port(), {"config": {"limits": {"concurrent": 1}}}
    rendered = chart.template(merge(merge(THIN, {"envoy": {"port": front}}), wanted))
    async with envoy(rendered.find("ConfigMap", "warmroute-envoy")["data"]["envoy.yaml"]) as running:
        opened = [await asyncio.open_connection("127.0.0.1", front) for _ in range(8)]
        reader, writer = await asyncio.open_connection("127.0.0.1", front)
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        assert await running.stat("http.inference.downstream_cx_active") == 8
        for _, each in [*opened, (reader, writer)]:
            each.close()


async def test_a_renewed_certificate_is_served(chart: Helm, envoy: Callable[[str], Any], tmp_path: Path) -> None:
    front = free_port()
    files, file = lay_out(chart.template(merge(PROFILES["thin with TLS"], {"envoy": {"port": front}})), tmp_path)
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=renewed"]
    new = {"tls.crt": tmp_path / "new.crt", "tls.key": tmp_path / "new.key"}
    files_of = ["-out", str(new["tls.crt"]), "-keyout", str(new["tls.key"])]
    await asyncio.to_thread(subprocess.run, [*make, *files_of], check=True, capture_output=True)

    def served() -> str:
        return ssl.get_server_certificate(("127.0.0.1", front)).strip()

    async with envoy(file.read_text()):
        assert await asyncio.to_thread(served) == SECRETS["front-tls"]["tls.crt"].strip()
        files.swap(files.folder / "etc/envoy/tls", {name: path.read_text() for name, path in new.items()})
        async with asyncio.timeout(SOON_S):
            while await asyncio.to_thread(served) != new["tls.crt"].read_text().strip():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
