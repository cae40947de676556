"""What the chart renders, by the real Helm: manifests that Kubernetes takes, and files that the router takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from docs.tools.pages import read_blocks
from router.config.reader import read_all
from router.control.proposals import LIVE_KEYS
from router.scheduling.policy.policy import build_policies
from tests.fakes.hugging_face import serve_model
from tests.gateway.chart import CHART, ENGINES, Files, Helm, Rendered, merge, validate
from tests.gateway.conftest import need
from tests.gateway.install import SCHEMAS
from tests.paths import CONFIGS, ROOT, TLS, TOKENIZER

Json = dict[str, Any]

POLICY = {"scorers": [{"name": "prefix_overlap"}]}
ON = {"enabled": True}
SECRETS = {
    "engines-key": {"api-key": "sk-engines"},
    "clients": {"keys.txt": f"{'a' * 64}  team-search\n"},
    "index": {"secret": "0123456789"},
    "mesh": {"secret": "0123456789abcdef"},
    "hub": {"token": "hf-token"},
    "front-tls": {"tls.crt": (TLS / "cert.pem").read_text(), "tls.key": (TLS / "key.pem").read_text()},
}
EVERYTHING: Json = {
    "image": {"repository": "registry.example/warmroute", "tag": "1", "pullSecrets": [{"name": "pull"}]},
    "engines": {"labels": {"app": "vllm", "llm-d.ai/model": "qwen"}, "ports": [8000, 8001], "namespace": "engines"},
    "tokenizers": [{"model": "Qwen/Qwen3-32B"}, {"model": "tiny", "path": TOKENIZER}],
    "huggingFaceEndpoint": "https://mirror.example",
    "config": {
        "active": "mine", "workers": 2, "limits": {"body_budget_bytes": 2147483648}, "listen": {"port": 8080},
        "wake": {"models": {"Qwen/*": {}, "tiny": {"deployment": {"name": "vllm-tiny"}}}},
    },
    "policies": {"mine": POLICY, "other": {"scorers": [{"name": "random"}]}},
    "secrets": {
        "engineApiKey": {"name": "engines-key"},
        "clientKeys": {"name": "clients", "key": "keys.txt"},
        "indexKey": {"name": "index"},
        "replicas": {"name": "mesh"},
        "huggingFaceToken": {"name": "hub"},
        "tls": {"name": "front-tls"},
    },
    "autoscaling": ON,
    "engineAutoscaling": {"by": "keda", "models": [
        {"model": "Qwen/Qwen3-32B", "deployment": "vllm-qwen", "minReplicas": 0, "maxReplicas": 4,
         "cooldownPeriod": 900},
        {"model": "tiny", "role": "decode", "deployment": "vllm-tiny", "maxReplicas": 2},
    ]},
    "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "gateway"}}}]},
    "monitoring": {"serviceMonitor": ON | {"labels": {"release": "prometheus"}}, "prometheusRule": ON, "dashboard": ON},
    "serviceAccount": {"name": "router", "annotations": {"example.com/role": "none"}},
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]}}},
    "priorityClassName": "serving",
    "podLabels": {"team": "serving"},
    "podAnnotations": {"example.com/scrape": "no"},
    "env": [{"name": "MALLOC_ARENA_MAX", "value": "2"}],
    "volumes": [{"name": "more", "emptyDir": {}}],
    "volumeMounts": [{"name": "more", "mountPath": "/more"}],
}  # fmt: skip
CASES: dict[str, Json] = {
    "labels alone": ENGINES,
    "a tokenizer": ENGINES | {"tokenizers": [{"model": "Qwen/Qwen3-32B"}]},
    "everything": EVERYTHING,
    "nothing optional": ENGINES | {
        "networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}, "topologySpread": []
    },
    "engines by DNS": {"config": {"fleet": {"dns": {"name": "vllm.llm.svc.cluster.local", "port": 8000}}}},
    "engines by an HPA": ENGINES | {"engineAutoscaling": {"by": "hpa", "models": [
        {"model": "qwen3-32b", "deployment": "vllm-qwen", "maxReplicas": 4}
    ]}},
    "envoy": ENGINES | {"mode": "envoy"},
    "envoy, conforming": ENGINES | {"mode": "envoy", "envoy": {"profile": "conforming", "port": 8443}},
    "envoy, everything": merge(EVERYTHING, {"mode": "envoy"}),
    "gateway": ENGINES | {"mode": "gateway"},
    "gateway, a pool that exists": {"mode": "gateway", "inferencePool": {"create": False, "name": "qwen"}},
    "gateway, everything": merge(EVERYTHING, {"mode": "gateway", "engines": {"namespace": ""}}),
    "a proxy over a pool": {"config": {"fleet": {"kubernetes": {"inference_pool": "qwen"}}}},
    "a selector of one's own": {"config": {"fleet": {"kubernetes": {"selector": "model in (a, b)"}}}},
}  # fmt: skip


def by_hpa(**fields: Any) -> Json:
    return {
        "engineAutoscaling": {"by": "hpa", "models": [{"model": "m", "deployment": "vllm", "maxReplicas": 2} | fields]}
    }


@pytest.fixture
def chart(helm: Path, tmp_path: Path) -> Helm:
    return Helm(helm, tmp_path)


def place_tokenizers(files: Files, rendered: Rendered) -> None:
    """Put a tokenizer where an init container would download one to."""
    for container in rendered.pod.get("initContainers", []):
        target = container["command"][-1].removeprefix("--local-dir=/")
        folder = files.folder / target
        folder.mkdir(parents=True)
        for file in Path(TOKENIZER).iterdir():
            (folder / file.name).symlink_to(file)


def lay_out(rendered: Rendered, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Files, Path]:
    """Return the pod's files below `folder`, and the file that its command reads as the configuration."""
    files = Files(folder, rendered, SECRETS)
    place_tokenizers(files, rendered)
    for name, value in files.environment(rendered).items():
        monkeypatch.setenv(name, value)
    return files, Path(files.command(rendered)[-1])


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_it_lints_and_kubernetes_takes_it(chart: Helm, values: Json) -> None:
    need(SCHEMAS)
    chart.done("lint", "--strict", str(CHART), "--values", chart.write(values))
    validate(chart.template(values).all)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_the_router_takes_its_files(chart: Helm, values: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = chart.template(values)
    _, file = lay_out(rendered, tmp_path / "pod", monkeypatch)
    read = read_all(file)
    build_policies(read.policies)
    listed = {port["name"]: port["containerPort"] for port in rendered.container()["ports"]}
    mode, picker = values.get("mode", "proxy"), read.config.picker
    status = "http" if mode == "proxy" else "status"
    assert listed.pop(status) == read.config.listen.port
    assert listed.pop("metrics") == read.config.metrics.port
    if mode == "gateway":
        assert picker is not None
        assert (listed.pop("grpc"), listed.pop("grpc-health")) == (picker.port, picker.health_port)
    replicas = read.config.replicas
    assert (replicas is not None) == ("replicas" in values.get("secrets", {}))
    if replicas is not None:
        assert replicas.dns == "warmroute-replicas.llm.svc"
        assert listed.pop("replicas") == replicas.port
        found_by = rendered.find("Service", "warmroute-replicas")
        assert found_by["spec"]["publishNotReadyAddresses"]
    assert (read.config.keda is not None) == (values.get("engineAutoscaling", {}).get("by") == "keda")
    if read.config.keda is not None:
        assert listed.pop("keda") == read.config.keda.port
    assert not listed
    assert (picker is None) == (mode == "proxy")
    assert read.config.admin.host == "127.0.0.1"
    assert rendered.pod["terminationGracePeriodSeconds"] >= read.config.limits.grace_s + 20
    assert set(values.get("policies", {})) <= set(read.policies)
    assert set(read.config.tokenizers) == {each["model"] for each in values.get("tokenizers", [])}


def test_the_check_of_manifests_notices(chart: Helm) -> None:
    need(SCHEMAS)
    deployment = chart.template(ENGINES).find("Deployment")
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        validate([merge(deployment, {"spec": {"replica": 2}})])


def test_a_tokenizer_is_downloaded_when_the_pod_starts(
    chart: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real `hf`, which the image has because the router's dependencies do, from a hub that is a double."""
    with serve_model("warm/tiny", Path(TOKENIZER)) as hub:
        wanted = {"tokenizers": [{"model": "warm/tiny"}], "huggingFaceEndpoint": hub}
        rendered = chart.template(ENGINES | wanted)
        files = Files(tmp_path / "pod", rendered)
        (download,) = rendered.pod["initContainers"]
        assert {mount["name"] for mount in download["volumeMounts"]} == {"tokenizers", "tmp"}
        command = [each.replace("=/", f"={files.folder}/") for each in download["command"]]
        environment = {
            entry["name"]: entry["value"].replace("/tmp", f"{files.folder}/tmp") for entry in download["env"]
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(command, env=environment | {"PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    source = read_all(files.command(rendered)[-1]).config.tokenizers["warm/tiny"]
    assert source.path is not None
    downloaded = {file.name: file.read_bytes() for file in Path(source.path).iterdir() if file.is_file()}
    assert downloaded == {file.name: file.read_bytes() for file in Path(TOKENIZER).iterdir()}


def test_everything_reaches_the_configuration(chart: Helm) -> None:
    config = chart.template(EVERYTHING).config
    assert config["fleet"]["kubernetes"] == {
        "namespace": "engines",
        "selector": "app=vllm,llm-d.ai/model=qwen",
        "ports": [8000, 8001],
        "api_key_env": "WARMROUTE_ENGINE_API_KEY",
    }
    assert config["tokenizers"] == {"Qwen/Qwen3-32B": {"path": "../tokenizers/0"}, "tiny": {"path": TOKENIZER}}
    assert config["limits"] == {"body_budget_bytes": 2147483648, "grace_s": 600}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "engines.labels: which pods are engines?"),
        ({"mode": "sidecar"}, "at '/mode': value must be"),
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"config": {"listen": {"prot": 1}}}, "at '/config/listen': additional properties 'prot' not allowed"),
        ({"config": {"limits": {"grace_s": "1m"}}}, "at '/config/limits/grace_s': got string, want number"),
        ({"policies": {"mine": {"scorers": []}}}, "at '/policies/mine/scorers': minItems: got 0, want 1"),
        ({"tokenizers": [{"path": "/m"}]}, "at '/tokenizers/0': missing property 'model'"),
        (
            {"mode": "envoy", "config": {"fleet": {"kubernetes": {"scheme": "https"}}}},
            "mode envoy reaches engines by http",
        ),
        (
            {"mode": "envoy", "envoy": {"profile": "slim"}},
            "at '/envoy/profile': value must be one of 'thin', 'conforming'",
        ),
        ({"mode": "gateway", "inferencePool": {"create": False}}, "inferencePool.name: which pool is it?"),
        ({"mode": "gateway", "engines": {"namespace": "other"}}, "engines.namespace: an InferencePool"),
        ({"engines": {"ports": [0]}}, "at '/engines/ports/0': minimum: got 0, want 1"),
        ({"engineAutoscaling": {"by": "vpa"}}, "at '/engineAutoscaling/by': value must be one of '', 'hpa', 'keda'"),
        ({"engineAutoscaling": {"models": [{"model": "m"}]}}, "missing properties 'deployment', 'maxReplicas'"),
        (by_hpa(minReplicas=0), "vllm: an HPA keeps at least one replica; with KEDA there may be none"),
        (by_hpa(model="Qwen/Qwen3-32B"), "Qwen/Qwen3-32B: an HPA selects by values of labels, and this cannot be one"),
    ],
)
def test_a_wrong_value_is_refused_with_its_reason(chart: Helm, values: Json, reason: str) -> None:
    assert reason in chart.refusal(merge(ENGINES, values) if values else values)


def test_it_may_read_pods_in_one_namespace_and_nothing_else(chart: Helm) -> None:
    rendered = chart.template(ENGINES)
    assert not [kind for kind in rendered.kinds if kind.startswith("Cluster")]
    assert rendered.find("Role")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    (_, pools) = chart.template(CASES["a proxy over a pool"]).find("Role")["rules"]
    assert (pools["resources"], pools["verbs"]) == (["inferencepools"], ["get", "list", "watch"])
    elsewhere = chart.template(EVERYTHING)
    for kind in ("Role", "RoleBinding"):
        assert elsewhere.find(kind)["metadata"]["namespace"] == "engines"
    assert elsewhere.find("RoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": "router", "namespace": "llm"}
    ]
    assert elsewhere.pod["serviceAccountName"] == "router"


HOLDS_ITSELF = {"scaleDown": {"stabilizationWindowSeconds": 0}}  # the router holds its count


def test_keda_scales_the_engines_by_what_it_is_told(chart: Helm) -> None:
    rendered = chart.template(EVERYTHING)
    sleeps, stays = (rendered.find("ScaledObject", name) for name in ("vllm-qwen", "vllm-tiny"))
    assert sleeps["metadata"]["namespace"] == "engines"
    (trigger,) = sleeps["spec"].pop("triggers")
    assert sleeps["spec"] == {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm-qwen"},
        "minReplicaCount": 0,
        "maxReplicaCount": 4,
        "cooldownPeriod": 900,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": HOLDS_ITSELF}},
    }
    assert trigger == {
        "type": "external-push",
        "metadata": {"scalerAddress": "warmroute-keda.llm.svc:9005", "model": "Qwen/Qwen3-32B", "role": "both"},
    }
    assert (stays["spec"]["minReplicaCount"], stays["spec"]["cooldownPeriod"]) == (1, 300)
    assert stays["spec"]["triggers"][0]["metadata"]["role"] == "decode"
    service = rendered.find("Service", "warmroute-keda")["spec"]
    assert (service["clusterIP"], service["ports"][0]["port"]) == ("None", 9005)
    secured = chart.template(merge(EVERYTHING, {"config": {"keda": {"port": 9999, "tls": "self-signed"}}}))
    metadata = secured.find("ScaledObject", "vllm-qwen")["spec"]["triggers"][0]["metadata"]
    assert metadata["scalerAddress"] == "warmroute-keda.llm.svc:9999"
    assert (metadata["enableTLS"], metadata["unsafeSsl"]) == ("true", "true")


@pytest.mark.parametrize(("version", "api"), [("1.34.0", "autoscaling/v2"), ("1.20.2", "autoscaling/v2beta2")])
def test_an_hpa_scales_the_engines_by_the_metric(chart: Helm, version: str, api: str) -> None:
    rendered = chart.template(CASES["engines by an HPA"], version=version)
    scaler = rendered.find("HorizontalPodAutoscaler", "vllm-qwen")
    assert (scaler["apiVersion"], scaler["metadata"]["namespace"]) == (api, "llm")
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 4)
    assert scaler["spec"]["behavior"] == HOLDS_ITSELF
    assert scaler["spec"]["scaleTargetRef"]["name"] == "vllm-qwen"
    (metric,) = scaler["spec"]["metrics"]
    selector = {"matchLabels": {"model": "qwen3-32b", "role": "both"}}
    assert metric["external"]["metric"] == {"name": "warmroute_desired_instances", "selector": selector}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert "keda" not in rendered.config


def test_the_page_shows_the_manifests_that_its_values_make(chart: Helm) -> None:
    need(SCHEMAS)
    blocks = list(read_blocks(ROOT / "docs/operate/autoscaling.md"))
    values = [yaml.safe_load(block.text) for block in blocks if block.value == "values of the chart"]
    manifests = [yaml.safe_load(block.text) for block in blocks if block.value == "manifests"]
    assert [manifest["kind"] for manifest in manifests] == ["ScaledObject", "HorizontalPodAutoscaler"]
    for given, manifest in zip(values, manifests, strict=True):
        rendered = chart.template(given)
        validate(rendered.all)
        made = rendered.find(manifest["kind"], manifest["metadata"]["name"])
        made["metadata"].pop("labels")
        assert made == manifest


def test_it_may_scale_the_deployments_that_wake_names_and_no_others(chart: Helm) -> None:
    models = {"a": {"name": "one"}, "b": {"name": "two"}, "c": {"name": "one"}, "d": {"name": "far", "namespace": "x"}}
    wake = {"models": {name: {"deployment": deployment} for name, deployment in models.items()}}
    rendered = chart.template(ENGINES | {"config": {"wake": wake}})
    roles = {
        each["metadata"]["namespace"]: each
        for each in rendered.all
        if each["metadata"]["name"] == "warmroute-wake" and each["kind"] == "Role"
    }
    rule = {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "patch"]}
    assert roles["llm"]["rules"] == [rule | {"resourceNames": ["one", "two"]}]
    assert roles["x"]["rules"] == [rule | {"resourceNames": ["far"]}]
    assert len(roles) == rendered.kinds.count("RoleBinding") - 1 == 2
    assert chart.template(EVERYTHING).find("RoleBinding", "warmroute-wake")["metadata"]["namespace"] == "engines"


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_every_container_is_confined(chart: Helm, values: Json) -> None:
    pod = chart.template(values).pod
    security = pod["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
    assert "USER 10001\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]


def test_only_clients_and_prometheus_reach_the_pod(chart: Helm) -> None:
    (to_all, metrics) = chart.template(ENGINES).find("NetworkPolicy")["spec"]["ingress"]
    assert to_all == {"ports": [{"protocol": "TCP", "port": 8000}]}
    assert [port["port"] for port in metrics["ports"]] == [9090]
    assert metrics["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}
    (to_some, to_replicas, to_keda, _) = chart.template(EVERYTHING).find("NetworkPolicy")["spec"]["ingress"]
    assert to_replicas["from"] == [
        {
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/name": "warmroute", "app.kubernetes.io/instance": "warmroute"}
            }
        }
    ]
    assert to_keda["ports"] == [{"protocol": "TCP", "port": 9005}]
    assert to_keda["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "keda-operator"}}
    assert to_some["from"] == [{"podSelector": {"matchLabels": {"app": "gateway"}}}]


def test_the_scheme_of_probes_is_that_of_the_port(chart: Helm) -> None:
    for values, scheme in ((ENGINES, "HTTP"), (EVERYTHING, "HTTPS")):
        container = chart.template(values).container()
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {probe["scheme"] for probe in probes.values()} == {scheme}
        assert {name: probe["path"] for name, probe in probes.items()} == {
            "startup": "/health",
            "liveness": "/health",
            "readiness": "/ready",
        }


def test_what_takes_effect_live_restarts_no_pod(chart: Helm) -> None:
    before = chart.template(ENGINES)
    live: list[Json] = [
        {"policies": {"mine": POLICY}},
        {"config": {"active": "round_robin"}},
        {"config": {"policies": {"mine": POLICY}}},
        {"config": {"admission": {"enabled": True}}},
        {"config": {"experiment": {"arms": {"warm": 50, "random": 50}}}},
    ]
    keys = {key for change in live for key in change.get("config", {"policies_dir": None})}
    assert keys == LIVE_KEYS
    for change in live:
        after = chart.template(merge(ENGINES, change))
        assert after.text != before.text
        assert after.find("Deployment") == before.find("Deployment")
    for change in ({"config": {"limits": {"concurrent": 5}}}, {"engines": {"ports": [8001]}}):
        after = chart.template(merge(ENGINES, change))
        assert after.find("Deployment") != before.find("Deployment")


def test_without_watch_every_change_restarts_the_pods(chart: Helm) -> None:
    fixed = merge(ENGINES, {"config": {"watch": False}})
    before, after = chart.template(fixed), chart.template(merge(fixed, {"config": {"active": "random"}}))
    assert before.find("Deployment") != after.find("Deployment")


def test_the_rules_and_the_dashboard_are_those_of_the_repository(chart: Helm) -> None:
    rendered = chart.template(EVERYTHING)
    rules = yaml.safe_load((CONFIGS / "prometheus/alerts.yaml").read_text(encoding="utf-8"))
    assert rendered.find("PrometheusRule")["spec"] == rules
    dashboard = rendered.find("ConfigMap", "warmroute-dashboard")["data"]["warmroute.json"]
    assert json.loads(dashboard) == json.loads((CONFIGS / "grafana/warmroute.json").read_text(encoding="utf-8"))
    monitor, service = rendered.find("ServiceMonitor"), rendered.find("Service", "warmroute-metrics")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_a_packed_chart_renders_the_same(chart: Helm, tmp_path: Path) -> None:
    """The links to the shared files are followed when it is packed."""
    chart.done("package", str(CHART), "--destination", str(tmp_path))
    (packed,) = tmp_path.glob("*.tgz")
    values = chart.write(EVERYTHING)
    texts = [chart.done("template", "warmroute", str(path), "--values", values) for path in (CHART, packed)]
    assert texts[0] == texts[1]
