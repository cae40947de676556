"""A real kube-apiserver over a real etcd, without controllers and kubelets: tests make pods and write their status."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from router.config.sections.discovery import KubernetesApiConfig
from router.lab.local_stack.guard import ProcessGuard
from router.lab.local_stack.preflight import free_ports
from tests.gateway.install import program
from tests.stack.children import Child

NAMESPACE = "llm"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
POOLS = f"/apis/inference.networking.k8s.io/v1/namespaces/{NAMESPACE}/inferencepools"
TOKENS = "admin,admin,1,system:masters\nreader,system:serviceaccount:llm:warmroute,2\nstranger,stranger,3\n"
START_S = 300.0
MERGE = "application/merge-patch+json"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = {
    "metadata": {"name": "warmroute"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": ["inference.networking.k8s.io"],
            "resources": ["inferencepools"],
            "verbs": ["get", "list", "watch"],
        },
    ],
}
BINDING = {
    "metadata": {"name": "warmroute"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "warmroute"},
    "subjects": [
        {"kind": "User", "name": "system:serviceaccount:llm:warmroute", "apiGroup": "rbac.authorization.k8s.io"}
    ],
}
POOL_SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
POOL_DEFINITION = {
    "metadata": {
        "name": "inferencepools.inference.networking.k8s.io",
        "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api-inference-extension"
        },
    },
    "spec": {
        "group": "inference.networking.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "InferencePool", "plural": "inferencepools", "singular": "inferencepool"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": POOL_SCHEMA}}],
    },
}

Json = dict[str, Any]


def free_port() -> int:
    """Return a port that is free now, and that the system gives to nobody who does not ask for it."""
    return free_ports(1)[0]


class Cluster:
    """The API server, and what a test does there as an administrator and as the kubelet."""

    def __init__(self, folder: Path, guard: ProcessGuard) -> None:
        self.folder = folder
        self._guard = guard
        self.port = free_port()
        self._etcd_ports = free_port(), free_port()
        self.token_file = folder / "token"
        self.token_file.write_text("reader")
        self._tokens = folder / "tokens.csv"
        self._tokens.write_text(TOKENS)
        self._etcd = self._child("etcd", *self._etcd_options())
        self._api_server = self._child("kube-apiserver", *self._api_server_options())

    @property
    def ca_file(self) -> Path:
        """The certificate that the API server made for itself, with that of its CA."""
        return self.folder / "certs" / "apiserver.crt"

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def config(self, port: int | None = None) -> KubernetesApiConfig:
        """How the router reaches it, directly or through a gate at `port`."""
        url = f"https://127.0.0.1:{port or self.port}"
        return KubernetesApiConfig(url=url, token_file=str(self.token_file), ca_file=str(self.ca_file))

    # processes

    def _child(self, name: str, *options: str) -> Child:
        return Child(name, [str(program(name)), *options], self.folder, guard=self._guard)

    def _etcd_options(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        return [
            *("--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--initial-cluster", f"default={peer}"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        ]

    def _api_server_options(self) -> list[str]:
        key = str(self.folder / "sa.key")
        return [
            *("--etcd-servers", f"http://127.0.0.1:{self._etcd_ports[0]}", "--cert-dir", str(self.folder / "certs")),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self.port), "--insecure-port", "0"),
            *("--service-account-key-file", key, "--service-account-signing-key-file", key),
            *("--service-account-issuer", "https://kubernetes.default.svc", "--authorization-mode", "RBAC"),
            *("--token-auth-file", str(self._tokens), "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none"),
        ]

    def start(self) -> None:
        """Start etcd and the API server, and wait until it is ready."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.folder / "sa.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        self._etcd.start()
        self.start_api_server()

    def start_api_server(self) -> None:
        self._api_server.start()
        self._api_server.wait(self._is_ready, START_S)

    def has_api_server(self) -> bool:
        return self._api_server.running()

    def stop_api_server(self) -> None:
        """Kill it: it does not say goodbye, as when its node is lost."""
        self._api_server.kill()

    def close(self) -> None:
        self._api_server.kill()
        self._etcd.kill()

    def _is_ready(self) -> bool:
        try:
            answer = httpx.get(f"https://127.0.0.1:{self.port}/readyz", verify=False, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.text == "ok"

    # objects

    async def call(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Json:
        """Send a request as the administrator. Raises httpx.HTTPStatusError."""
        async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=30.0) as client:
            answer = await client.request(
                method,
                f"https://127.0.0.1:{self.port}{path}",
                content=None if body is None else json.dumps(body),
                headers={"authorization": "Bearer admin", "content-type": kind},
            )
        return dict(answer.raise_for_status().json())

    async def prepare(self) -> None:
        """Make the namespace, the rights of the router, and the kind InferencePool."""
        await self.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await self.call("POST", f"{RBAC}/namespaces/{NAMESPACE}/roles", ROLE)
        await self.call("POST", f"{RBAC}/namespaces/{NAMESPACE}/rolebindings", BINDING)
        await self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", POOL_DEFINITION)

    async def make_pod(self, name: str, ip: str, labels: Mapping[str, str] | None = None, **metadata: Any) -> str:
        """Make a pod that runs and is ready. Returns its uid."""
        meta = metadata | {"name": name, "labels": {"app": "vllm"} | dict(labels or {})}
        spec = {"nodeName": "node", "containers": [{"name": "vllm", "image": "vllm"}]}
        made = await self.call("POST", PODS, {"metadata": meta, "spec": spec})
        await self.set_ready(name, True, ip)
        return str(made["metadata"]["uid"])

    async def set_ready(self, name: str, ready: bool, ip: str | None = None) -> None:
        """Write a status as the kubelet does."""
        status: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
        if ip is not None:
            status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
        await self.call("PATCH", f"{PODS}/{name}/status", {"status": status}, MERGE)

    async def set_labels(self, name: str, **labels: str) -> None:
        await self.call("PATCH", f"{PODS}/{name}", {"metadata": {"labels": labels}}, MERGE)

    async def delete_pod(self, name: str, *, at_once: bool = False) -> None:
        """Delete a pod: with its grace period, after which the kubelet removes it, or at once."""
        await self.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0} if at_once else None)

    async def delete_all(self) -> None:
        for found in (await self.call("GET", PODS))["items"]:
            await self.delete_pod(found["metadata"]["name"], at_once=True)


class Gate:
    """A TCP relay in front of the API server that a test closes, or whose connections it makes silent."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.closed = False
        self.opened = 0  # connections so far
        self._silenced = 0  # the first of them are silent
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.closed = True
        self.hang_up()
        await asyncio.gather(*self._relays)

    def hang_up(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        """Let nothing more come from the API server on the connections of now: no data, and no end."""
        self._silenced = self.opened

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self.opened += 1
        number, mine = self.opened, {writer, outer}
        if self.closed:
            for each in mine:
                each.transport.abort()
            return
        self._writers |= mine
        try:
            await asyncio.gather(self._copy(reader, outer), self._copy(inner, writer, number))
        except OSError:
            pass
        finally:
            for each in mine:
                each.close()
            self._writers -= mine

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, number: int | None = None) -> None:
        """Copy until the end; what comes from the API server has the `number` of its connection."""
        while data := await source.read(65536):
            if not self._is_silent(number):
                to.write(data)
                await to.drain()
        if not self._is_silent(number):
            to.close()

    def _is_silent(self, number: int | None) -> bool:
        return number is not None and number <= self._silenced
