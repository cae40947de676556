"""A release of the chart on the test cluster, and its router as the kubelet would start it: with the files, the command
and the environment of its Deployment, as another user, without capabilities, on a root that cannot be written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.lab.local_stack.guard import ProcessGuard
from tests.e2e.conftest import MODEL
from tests.gateway.chart import Files, Helm, Rendered
from tests.gateway.cluster import Cluster, free_port
from tests.paths import TOKENIZER
from tests.stack.children import Child

NAMESPACE = "edge"
RELEASE, NAME = "front", "front-warmroute"  # whose engines are in the namespace `llm`
OPERATOR_KINDS = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANYTHING = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
CONFINED = """
for folder in $WRITABLE; do mount --bind "$folder" "$folder" || exit 1; done
mount -o remount,bind,ro / || exit 1
exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make a process another user on a read-only root"
)
SOON_S = 30.0
ENGINES_PORT = 18_000
A, B = (f"127.1.{os.getpid() % 250 + 1}.{number}" for number in (1, 2))  # runs at the same time have others

Json = dict[str, Any]


async def prepare(cluster: Cluster) -> None:
    """Make the namespaces of releases, and the kinds of the Prometheus operator and of KEDA."""
    for name in (NAMESPACE, "engines"):
        await cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for plural, kind in OPERATOR_KINDS.items():
        await define(cluster, "monitoring.coreos.com", "v1", plural, kind)
    await define(cluster, "keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")


async def define(cluster: Cluster, group: str, version: str, plural: str, kind: str) -> None:
    """Make a kind whose objects may have any content."""
    versions = [{"name": version, "served": True, "storage": True, "schema": ANYTHING}]
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": versions}
    await cluster.call("POST", DEFINITIONS, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})


def connect(cluster: Cluster, helm: Path, home: Path, namespace: str) -> Helm:
    """Return Helm as an administrator of the cluster."""
    server = f"https://127.0.0.1:{cluster.port}"
    access = ("--kube-apiserver", server, "--kube-token", "admin", "--kube-ca-file", str(cluster.ca_file))
    return Helm(helm, home, [*access, "--namespace", namespace])


class RunningRouter:
    """The router of a release, started as its Deployment says."""

    def __init__(
        self, release: Helm, folder: Path, guard: ProcessGuard, secrets: Mapping[str, Mapping[str, str]] = {}
    ) -> None:
        self.rendered = rendered = Rendered(release.done("get", "manifest", RELEASE), NAME)
        self._release = release
        self._files = Files(folder / "pod", rendered, secrets)
        writable = [self._files.folder / "tmp", self._files.folder / "var/lib/warmroute"]
        environment = self._files.environment(rendered) | {"WRITABLE": " ".join(map(str, writable))}
        command = ["unshare", "--mount", "sh", "-c", CONFINED, "sh", *self._files.command(rendered)]
        self.child = Child("router", command, folder, environment, guard)
        config = rendered.config
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{config['listen']['port']}", trust_env=False)
        self.admin = httpx.AsyncClient(base_url=f"http://127.0.0.1:{config['admin']['port']}", trust_env=False)
        self.metrics = httpx.AsyncClient(base_url=f"http://127.0.0.1:{config['metrics']['port']}", trust_env=False)

    @classmethod
    @asynccontextmanager
    async def run(cls, *parts: Any) -> AsyncIterator[RunningRouter]:
        running = cls(*parts)
        running.child.start()
        try:
            await asyncio.to_thread(running.child.wait, running.listens, SOON_S)
            yield running
        finally:
            running.child.kill()
            for client in (running.http, running.admin, running.metrics):
                await client.aclose()

    def listens(self) -> bool:
        return b"listening on" in self.child.log.read_bytes()

    def update(self) -> None:
        """Bring the release's present ConfigMaps into the files."""
        self._files.update(Rendered(self._release.done("get", "manifest", RELEASE), NAME))

    async def until_ready(self) -> None:
        async with asyncio.timeout(SOON_S):
            while (await self.http.get("/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def instances(self) -> list[Json]:
        return list((await self.admin.get("/admin/instances")).json()["instances"])

    async def until_active(self, policy: str) -> None:
        async with asyncio.timeout(SOON_S):
            while (await self.admin.get("/admin/policies")).json()["active"] != policy:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def make_token(cluster: Cluster, namespace: str = NAMESPACE) -> str:
    """Return a token of the release's service account, as a pod has it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{NAME}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str((await cluster.call("POST", path, asked))["status"]["token"])


def values(cluster: Cluster, folder: Path) -> Json:
    """Values of a router on this machine, outside of the cluster: ports that are free, and where the API server is."""
    ca_file = shutil.copy(cluster.ca_file, folder / "ca.crt")
    api = cluster.config().model_dump() | {"token_file": str(folder / "token"), "ca_file": str(ca_file)}
    return {
        "engines": {"labels": {"app": "vllm"}, "ports": [ENGINES_PORT], "namespace": "llm"},
        "tokenizers": [{"model": MODEL, "path": TOKENIZER}],
        "config": {
            "listen": {"port": free_port()},
            "admin": {"port": free_port()},
            "metrics": {"port": free_port()},
            "fleet": {"kubernetes": {"api": api}},
        },
    }
