"""What a pod means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.kubernetes.objects import Pod
from router.backends.discovery.kubernetes.pods import PodInstances
from router.config.sections.discovery import KubernetesConfig


def pod(
    name: str = "vllm-0",
    uid: str = "3f2a9c1d-aaaa",
    ip: str | None = "10.0.0.1",
    ready: str = "True",
    phase: str = "Running",
    **metadata: Any,
) -> Pod:
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
    if ip is not None:
        status["podIP"] = ip
    found = {"metadata": {"name": name, "uid": uid, **metadata}, "status": status, "spec": {}}
    return msgspec.json.decode(msgspec.json.encode(found), type=Pod)


class Pods:
    def __init__(self, **config: Any) -> None:
        self.instances = PodInstances(KubernetesConfig.model_validate({"selector": "app=vllm"} | config), "llm")

    def update(self, *pods: Pod, ports: tuple[int, ...] = (8000,)) -> list[DiscoveredInstance]:
        return self.instances.update({found.metadata.uid: found for found in pods}, ports)


def test_a_ready_pod_is_an_instance() -> None:
    (found,) = Pods().update(pod())
    assert found.config.url == "http://10.0.0.1:8000"
    assert found.config.id == "vllm-0.3f2a9c1d"
    assert (found.uid, found.accepting, found.origin) == ("3f2a9c1d-aaaa", True, "pod llm/vllm-0")


def test_a_pod_that_was_never_usable_is_none() -> None:
    assert Pods().update(pod(ready="False"), pod(uid="2", ip=None), pod(uid="3", deletionTimestamp="now")) == []


@pytest.mark.parametrize(
    "change", [{"ready": "False"}, {"ready": "Unknown"}, {"deletionTimestamp": "now"}, {"ip": None}]
)
def test_one_that_stops_being_usable_stays_known_and_gets_nothing_new(change: dict[str, Any]) -> None:
    pods = Pods()
    (before,) = pods.update(pod())
    assert pods.update(pod(**change)) == [before._replace(accepting=False)]
    if "deletionTimestamp" not in change:
        assert pods.update(pod()) == [before]
    assert pods.update() == []


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_one_whose_containers_ended_is_gone(phase: str) -> None:
    pods = Pods()
    pods.update(pod())
    assert pods.update(pod(phase=phase, ready="False")) == []


def test_a_reused_name_is_another_instance() -> None:
    pods = Pods()
    (first,) = pods.update(pod())
    (second,) = pods.update(pod(uid="77777777-bbbb", ip="10.0.0.2"))
    assert (first.config.id, second.config.id) == ("vllm-0.3f2a9c1d", "vllm-0.77777777")


def test_a_reused_address_belongs_to_the_usable_pod() -> None:
    pods = Pods()
    pods.update(pod())
    leaving, new = pod(deletionTimestamp="now"), pod("vllm-1", "77777777-bbbb")
    assert [found.uid for found in pods.update(leaving, new)] == ["77777777-bbbb"]
    assert [found.uid for found in pods.update(new, leaving)] == ["77777777-bbbb"]


def test_several_ports_are_an_instance_each() -> None:
    found = Pods().update(pod(), ports=(8000, 8001))
    assert [(at.config.id, at.config.url) for at in found] == [
        ("vllm-0-rank-0.3f2a9c1d", "http://10.0.0.1:8000"),
        ("vllm-0-rank-1.3f2a9c1d", "http://10.0.0.1:8001"),
    ]


@pytest.mark.parametrize("name", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"])
def test_an_annotation_leaves_ports_out(name: str) -> None:
    found = Pods().update(pod(annotations={name: " 8001, 9000"}), ports=(8000, 8001))
    assert [at.config.id for at in found] == ["vllm-0-rank-1.3f2a9c1d"]


def test_ipv6_addresses_get_brackets() -> None:
    (found,) = Pods().update(pod(ip="fd00::2", annotations={"warmroute.dev/kv-events-port": "5557"}))
    assert found.config.url == "http://[fd00::2]:8000"
    assert found.config.kv_events[0].endpoint == "tcp://[fd00::2]:5557"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("label", "role"),
    [("prefill", "prefill"), ("decode", "decode"), ("prefill-decode", "both"), ("both", "both"), (None, "both")],
)
def test_roles_by_the_label_of_llm_d(label: str | None, role: str) -> None:
    (found,) = Pods().update(pod(labels={} if label is None else {"llm-d.ai/role": label}))
    assert found.config.role == role
    assert (found.config.transfer is None) == (role == "both")


def test_a_pod_that_only_encodes_is_no_instance() -> None:
    assert Pods().update(pod(labels={"llm-d.ai/role": "encode"})) == []


def test_roles_by_labels_of_ones_own() -> None:
    pods = Pods(prefill_labels={"part": "p"}, decode_labels={"part": "d"}, transfer="mooncake", bootstrap_port=9000)
    roles = {}
    for part in ("p", "d", "x"):
        (found,) = pods.update(pod(labels={"part": part, "more": "1"}))
        roles[part] = (found.config.role, found.config.transfer and found.config.transfer.bootstrap_url)
    assert roles == {"p": ("prefill", "http://10.0.0.1:9000"), "d": ("decode", None), "x": ("both", None)}


def test_the_revision_is_a_label_or_an_annotation() -> None:
    labels = {"app.kubernetes.io/version": "1", "pod-template-hash": "h"}
    assert Pods().update(pod(labels=labels))[0].config.revision == "1"
    assert Pods(revision_label="pod-template-hash").update(pod(labels=labels))[0].config.revision == "h"
    assert Pods().update(pod(labels=labels, annotations={"warmroute.dev/revision": "2"}))[0].config.revision == "2"
    assert Pods().update(pod())[0].config.revision is None


def test_event_ports_by_annotation_count_by_rank() -> None:
    ports = {"warmroute.dev/kv-events-port": "5557", "warmroute.dev/kv-replay-port": "6000"}
    first, second = Pods().update(pod(annotations=ports), ports=(8000, 8001))
    for found, offset in ((first, 0), (second, 1)):
        (source,) = found.config.kv_events  # type: ignore[misc]
        assert source.endpoint == f"tcp://10.0.0.1:{5557 + offset}"  # type: ignore[union-attr]
        assert source.replay_endpoint == f"tcp://10.0.0.1:{6000 + offset}"  # type: ignore[union-attr]
    for wrong in ("0", "70000", "x"):
        assert Pods().update(pod(annotations={"warmroute.dev/kv-events-port": wrong}))[0].config.kv_events == "auto"


def test_only_pods_that_changed_are_read_again() -> None:
    pods = Pods()
    stays = pod("a", "1", "10.0.0.1")
    (first,) = pods.update(stays)
    again, _ = pods.update(stays, pod("b", "2", "10.0.0.2"))
    assert again is first
