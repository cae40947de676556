"""The chart on a real API server: Helm's life of a release, and the router with the files and the rights that it gets.

There are no kubelets and no controllers: the tests make the engines' pods, write the router's files as a kubelet would,
and start it from this checkout with the command of the Deployment. It runs as in its container: another user, no
capabilities, a root file system that cannot be written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from docs.tools.pages import ROOT, read_blocks
from router.testbed.local_stack.guard import ProcessGuard
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine
from tests.gateway.chart import CHART, ENGINES, Files, Helm, Rendered, merge
from tests.gateway.cluster import Cluster, free_port
from tests.gateway.conftest import ENGINE_PORT
from tests.gateway.test_chart import EVERYTHING
from tests.paths import TOKENIZER
from tests.stack.children import Child

NAMESPACE = "edge"
RELEASE, NAME = "front", "front-warmroute"  # whose engines are in the namespace `llm`
GROUPS = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANYTHING = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
CONFINED = """
for folder in $WRITABLE; do mount --bind "$folder" "$folder" || exit 1; done
mount -o remount,bind,ro / || exit 1
exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
A, B = "127.0.7.1", "127.0.7.2"
SOON_S = 30.0
PAGE = ROOT / "docs/operate/kubernetes.md"
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make a process another user on a read-only root"
)

Json = dict[str, Any]


@pytest.fixture(scope="module")
def namespaces(running_cluster: Cluster) -> Cluster:
    """The cluster with the namespaces of releases, and the kinds of the Prometheus operator."""

    async def make() -> None:
        for name in (NAMESPACE, "engines"):
            await running_cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for plural, kind in GROUPS.items():
            version = {"name": "v1", "served": True, "storage": True, "schema": ANYTHING}
            names = {"kind": kind, "plural": plural, "singular": kind.lower()}
            spec = {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]}
            await running_cluster.call(
                "POST", DEFINITIONS, {"metadata": {"name": f"{plural}.monitoring.coreos.com"}, "spec": spec}
            )

    asyncio.run(make())
    return running_cluster


@pytest.fixture
def release(namespaces: Cluster, cluster: Cluster, helm: Path, tmp_path: Path) -> Any:
    """Helm as an administrator of the cluster; what it installed goes with the test."""
    server = f"https://127.0.0.1:{cluster.port}"
    access = ("--kube-apiserver", server, "--kube-token", "admin", "--kube-ca-file", str(cluster.ca_file))
    running = Helm(helm, tmp_path, [*access, "--namespace", NAMESPACE])
    yield running
    for name in ("warmroute", RELEASE):
        running.run("uninstall", name, "--ignore-not-found")


async def count(cluster: Cluster) -> int:
    """Return how many objects of the release there are, of every kind that the chart makes."""
    found = 0
    for path in (
        *(f"/api/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("configmaps", "services", "serviceaccounts")),
        *(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("roles", "rolebindings")),
        *(f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}/{kind}" for kind in GROUPS),
        f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
        f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
        f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets",
        f"/apis/autoscaling/v2beta2/namespaces/{NAMESPACE}/horizontalpodautoscalers",
    ):
        listed = await cluster.call("GET", f"{path}?labelSelector=app.kubernetes.io/instance%3Dwarmroute")
        found += len(listed["items"])
    return found


async def deployment(cluster: Cluster) -> Json:
    return await cluster.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/warmroute")


async def test_install_upgrade_rollback_uninstall(release: Helm, cluster: Cluster) -> None:
    release.done("install", "warmroute", str(CHART), "--set", "engines.labels.app=vllm")
    assert await count(cluster) == 10
    assert (await deployment(cluster))["spec"]["replicas"] == 1
    release.done("upgrade", "warmroute", str(CHART), "--reuse-values", "--set", "replicas=3,config.active=random")
    assert (await deployment(cluster))["spec"]["replicas"] == 3
    release.done("rollback", "warmroute", "1")
    assert (await deployment(cluster))["spec"]["replicas"] == 1
    (listed,) = (await cluster.call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/warmroute"))["data"].values()
    assert "random" not in listed
    release.done("uninstall", "warmroute")
    assert await count(cluster) == 0


async def test_everything_at_once(release: Helm, cluster: Cluster) -> None:
    release.done("install", "warmroute", str(CHART), "--values", release.write(EVERYTHING))
    assert await count(cluster) == 12  # the Role and its binding are where the engines are
    made = await deployment(cluster)
    assert made["spec"]["template"]["spec"]["tolerations"] == [{"key": "cpu", "operator": "Exists"}]


class RunningRouter:
    """The router of a release, started as its Deployment says."""

    def __init__(
        self, release: Helm, folder: Path, guard: ProcessGuard, secrets: Mapping[str, Mapping[str, str]] = {}
    ) -> None:
        rendered = Rendered(release.done("get", "manifest", RELEASE), NAME)
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
            await asyncio.to_thread(
                running.child.wait, lambda: b"listening on" in running.child.log.read_bytes(), SOON_S
            )
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

    async def until_active(self, policy: str) -> None:
        async with asyncio.timeout(SOON_S):
            while (await self.admin.get("/admin/policies")).json()["active"] != policy:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def make_token(cluster: Cluster) -> str:
    """Return a token of the release's service account, as a pod has it."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str((await cluster.call("POST", path, asked))["status"]["token"])


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can read, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="warmroute-pod-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def values(cluster: Cluster, folder: Path) -> Json:
    """Values of a router on this machine, outside of the cluster: ports that are free, and where the API server is."""
    ca_file = shutil.copy(cluster.ca_file, folder / "ca.crt")
    api = cluster.config().model_dump() | {"token_file": str(folder / "token"), "ca_file": str(ca_file)}
    return {
        "engines": {"labels": {"app": "vllm"}, "ports": [ENGINE_PORT], "namespace": "llm"},
        "tokenizers": [{"model": MODEL, "path": TOKENIZER}],
        "config": {
            "listen": {"port": free_port()},
            "admin": {"port": free_port()},
            "metrics": {"port": free_port()},
            "fleet": {"kubernetes": {"api": api}},
        },
    }


async def status_of(cluster: Cluster, path: str, token: str) -> int:
    async with httpx.AsyncClient(verify=False, trust_env=False) as client:
        headers = {"authorization": f"Bearer {token}"}
        return (await client.get(f"https://127.0.0.1:{cluster.port}{path}", headers=headers)).status_code


@ROOT_ONLY
async def test_the_router_runs_with_what_it_gets(
    release: Helm, cluster: Cluster, open_folder: Path, guard: ProcessGuard
) -> None:
    wanted = values(cluster, open_folder)
    release.done("install", RELEASE, str(CHART), "--values", release.write(wanted))
    (open_folder / "token").write_text(token := await make_token(cluster))
    allowed = {"llm/pods": 200, "llm/secrets": 403, f"{NAMESPACE}/pods": 403, f"{NAMESPACE}/configmaps": 403}
    for path, status in allowed.items():
        assert await status_of(cluster, f"/api/v1/namespaces/{path}", token) == status, path

    await cluster.make_pod("a", A)
    await cluster.set_ready("a", False)
    options = {"port": ENGINE_PORT, "events": True}
    async with engine(host=A, **options), RunningRouter.run(release, open_folder, guard) as running:
        assert (await running.http.get("/health")).status_code == 200
        not_ready = await running.http.get("/ready")
        assert (not_ready.status_code, not_ready.json()["reason"]) == (503, "no instance is ready")
        await cluster.set_ready("a", True)
        await running.until_ready()
        answer = await running.http.post("/v1/completions", json={"model": MODEL, "prompt": "Hello."})
        assert (answer.status_code, answer.headers["x-warmroute-target"].partition(".")[0]) == (200, "a")
        assert "warmroute_requests_total" in (await running.metrics.get("/metrics")).text
        assert (await running.http.get("/metrics")).status_code == 404

        mine = {"policies": {"mine": {"scorers": [{"name": "random"}]}}, "config": {"active": "mine"}}
        release.done("upgrade", RELEASE, str(CHART), "--values", release.write(merge(wanted, mine)))
        running.update()
        await running.until_active("mine")
        release.done("rollback", RELEASE, "1")
        running.update()
        await running.until_active("warm")
        assert await asyncio.to_thread(running.child.stop) == 0


@ROOT_ONLY
@pytest.mark.parametrize(
    ("file", "labels"),
    [
        ("values-llm-d.yaml", {"llm-d.ai/guide": "precise-prefix-cache-aware", "llm-d.ai/role": "decode"}),
        ("values-production-stack.yaml", {"helm-release-name": "vllm", "model": "qwen", "environment": "test"}),
    ],
)
async def test_engines_with_the_labels_of_others(
    file: str, labels: dict[str, str], release: Helm, cluster: Cluster, open_folder: Path, guard: ProcessGuard
) -> None:
    """By the values on the page, with their tokenizer, ports and namespace replaced by those of this machine."""
    (page,) = [yaml.safe_load(block.text) for block in read_blocks(PAGE) if block.text.startswith(f"# {file}\n")]
    here = values(cluster, open_folder)
    here["engines"].pop("labels")
    release.done("install", RELEASE, str(CHART), "--values", release.write(merge(page, here)))
    (open_folder / "token").write_text(await make_token(cluster))
    await cluster.make_pod("theirs", A, labels)
    await cluster.make_pod("other", B)
    secrets = {"vllm-secrets": {"vllmApiKey": "sk-engines"}}
    async with (
        engine(host=A, port=ENGINE_PORT, events=True),
        RunningRouter.run(release, open_folder, guard, secrets) as running,
    ):
        await running.until_ready()
        instances = (await running.admin.get("/admin/instances")).json()["instances"]
        assert [instance["id"].partition(".")[0] for instance in instances] == ["theirs"]
        answer = await running.http.post("/v1/completions", json={"model": MODEL, "prompt": "Hello."})
        assert (answer.status_code, answer.headers["x-warmroute-target"].partition(".")[0]) == (200, "theirs")


@ROOT_ONLY
def test_a_confined_process_cannot_write_what_is_not_its(open_folder: Path, guard: ProcessGuard) -> None:
    own, other = open_folder / "own", open_folder / "other"
    for folder in (own, other):
        folder.mkdir()
        folder.chmod(0o777)
    script = f"touch {own}/file; touch {other}/file; id -u; grep CapEff /proc/self/status"
    child = Child("sh", ["unshare", "--mount", "sh", "-c", CONFINED, "sh", "sh", "-c", script], open_folder,
                  {"WRITABLE": str(own)}, guard)  # fmt: skip
    child.start()
    child.wait(lambda: "CapEff" in child.log.read_text(), SOON_S)
    child.kill()
    assert (own / "file").exists()
    assert not (other / "file").exists()
    assert "10001\nCapEff:\t0000000000000000\n" in child.log.read_text()


async def test_the_api_server_takes_each_case(release: Helm) -> None:
    """A second release may stand beside the first."""
    for name in ("one", "two"):
        release.done("install", name, str(CHART), "--values", release.write(ENGINES))
    for name in ("one", "two"):
        release.done("uninstall", name)
