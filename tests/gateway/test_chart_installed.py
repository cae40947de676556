"""The chart on a real API server: Helm's life of a release, and the router with the files and the rights that it gets.

There are no kubelets and no controllers: the tests make the engines' pods, write the router's files as a kubelet would,
and start it from this checkout with the command of the Deployment. It runs as in its container: another user, no
capabilities, a root file system that cannot be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from docs.tools.pages import ROOT, read_blocks
from router.lab.local_stack.guard import ProcessGuard
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine
from tests.fakes.keda import Keda
from tests.gateway.chart import CHART, ENGINES, Helm, merge
from tests.gateway.cluster import Cluster, free_port
from tests.gateway.releases import (
    CONFINED,
    ENGINES_PORT,
    NAMESPACE,
    OPERATOR_KINDS,
    RELEASE,
    ROOT_ONLY,
    SOON_S,
    A,
    B,
    RunningRouter,
    make_token,
    values,
)
from tests.gateway.test_chart import EVERYTHING
from tests.stack.children import Child

SERVING = health_pb2.HealthCheckResponse.SERVING
SCALED_OBJECT = "/apis/keda.sh/v1alpha1/namespaces/llm/scaledobjects/{}"
PAGE = ROOT / "docs/operate/kubernetes.md"

Json = dict[str, Any]


@pytest.fixture
def release(release_in: Callable[[str], Helm]) -> Helm:
    return release_in(NAMESPACE)


async def count(cluster: Cluster) -> int:
    """Return how many objects of the release there are, of every kind that the chart makes."""
    found = 0
    for path in (
        *(f"/api/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("configmaps", "services", "serviceaccounts")),
        *(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("roles", "rolebindings")),
        *(f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}/{kind}" for kind in OPERATOR_KINDS),
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
    assert await count(cluster) == 14  # the Roles and their bindings are where the engines are
    made = await deployment(cluster)
    assert made["spec"]["template"]["spec"]["tolerations"] == [{"key": "cpu", "operator": "Exists"}]


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
    options = {"port": ENGINES_PORT, "events": True}
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
        engine(host=A, port=ENGINES_PORT, events=True),
        RunningRouter.run(release, open_folder, guard, secrets) as running,
    ):
        await running.until_ready()
        assert [instance["id"].partition(".")[0] for instance in await running.instances()] == ["theirs"]
        answer = await running.http.post("/v1/completions", json={"model": MODEL, "prompt": "Hello."})
        assert (answer.status_code, answer.headers["x-warmroute-target"].partition(".")[0]) == (200, "theirs")


@ROOT_ONLY
async def test_it_wakes_a_deployment_and_answers_keda(
    release: Helm, cluster: Cluster, open_folder: Path, guard: ProcessGuard
) -> None:
    deployments = "/apis/apps/v1/namespaces/llm/deployments"
    for name in ("sleeps", "other"):
        await cluster.call("POST", deployments, a_deployment(name, replicas=0))
    port = free_port()
    scaled = {"model": "qwen", "deployment": "other", "minReplicas": 0, "maxReplicas": 2}
    wanted = {
        "config": {"wake": {"models": {MODEL: {"deployment": {"name": "sleeps"}}, "qwen": {}}}, "keda": {"port": port}},
        "engineAutoscaling": {"by": "keda", "models": [scaled]},
    }
    release.done("install", RELEASE, str(CHART), "--values", release.write(merge(values(cluster, open_folder), wanted)))
    (open_folder / "token").write_text(token := await make_token(cluster))
    for name, status in {"sleeps": 200, "other": 403}.items():
        assert await status_of(cluster, f"{deployments}/{name}/scale", token) == status, name
    (trigger,) = (await cluster.call("GET", SCALED_OBJECT.format("other")))["spec"]["triggers"]
    async with RunningRouter.run(release, open_folder, guard) as running, Keda.connect(port) as keda:
        await running.until_ready()
        for model in (MODEL, "qwen"):
            stream = keda.watch(**trigger["metadata"] | {"model": model})
            request = asyncio.create_task(running.http.post("/v1/completions", json={"model": model, "prompt": "a"}))
            assert await stream.read() is True
            request.cancel()
        async with asyncio.timeout(SOON_S):
            while (await cluster.call("GET", f"{deployments}/sleeps"))["spec"]["replicas"] != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await cluster.call("GET", f"{deployments}/other"))["spec"]["replicas"] == 0, "KEDA's operator scales it"
    for name in ("sleeps", "other"):
        await cluster.call("DELETE", f"{deployments}/{name}")


def a_deployment(name: str, replicas: int) -> Json:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def until_serving(port: int, service: str) -> None:
    """Wait until a gRPC health service says so, as a kubelet or a gateway asks it."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(SOON_S):
        check = health_pb2_grpc.HealthStub(channel).Check
        while (await check(health_pb2.HealthCheckRequest(service=service))).status != SERVING:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@ROOT_ONLY
async def test_a_picker_follows_the_pool_of_its_release(
    release_in: Callable[[str], Helm], cluster: Cluster, open_folder: Path, guard: ProcessGuard
) -> None:
    release = release_in("llm")
    wanted = merge(values(cluster, open_folder), {"mode": "gateway", "engines": {"namespace": ""}})
    ports = {"port": free_port(), "health_port": free_port()}
    wanted = merge(wanted, {"config": {"picker": ports}})
    release.done("install", RELEASE, str(CHART), "--values", release.write(wanted))
    (open_folder / "token").write_text(await make_token(cluster, "llm"))
    await cluster.make_pod("a", A)
    async with (
        engine(host=A, port=ENGINES_PORT, events=True),
        engine(host=A, port=ENGINES_PORT + 1, events=True),
        RunningRouter.run(release, open_folder, guard) as running,
    ):
        await until_serving(ports["health_port"], "liveness")
        await until_serving(ports["health_port"], "readiness")
        assert (await running.http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})).status_code == 404
        more = merge(wanted, {"engines": {"ports": [ENGINES_PORT, ENGINES_PORT + 1]}})
        release.done("upgrade", RELEASE, str(CHART), "--values", release.write(more))
        async with asyncio.timeout(SOON_S):
            while len(await running.instances()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert {instance["url"] for instance in await running.instances()} == {
            f"http://{A}:{ENGINES_PORT}",
            f"http://{A}:{ENGINES_PORT + 1}",
        }


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
