"""Sources of instances that are queried while the router runs: DNS and the Kubernetes API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from router.config.sections.base import BaseUrl, PathName, Seconds, Section, Shape, VariableName

NAMESPACE = Shape(
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "a name of Kubernetes: up to 63 lower-case letters, digits and dashes"
)
TcpPort = Annotated[int, Field(ge=1, le=65535)]
HostName = Annotated[
    str,
    Shape(r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$", "a host name without scheme and port"),
    Field(max_length=253),
]


class DiscoveredEngines(Section):
    """Says how the engines that a source lists are reached, where the source itself does not say it."""

    scheme: Literal["http", "https"] = "http"
    """protocol of the engines"""
    api_key_env: VariableName | None = None
    """environment variable that holds the engines' API key; null: no key is sent"""
    ca_file: PathName | None = None
    """PEM file of the CA that signed the engines' certificates; null: the system's CAs"""
    cpu_medium: Literal["pool", "host"] = "pool"
    """meaning of the medium `cpu` (lower case) in the engines' events, as in `fleet.instances`"""


class DnsConfig(DiscoveredEngines):
    name: HostName
    """host name whose addresses are the engines, such as a headless Service; each IPv4 address is one, the IPv6
    addresses are used where there is no other. With `port: null`, the name of SRV records
    (_http._tcp.vllm.llm.svc.cluster.local)"""
    port: TcpPort | None = None
    """port of the engines; null: the SRV records of `name` give addresses and ports"""
    interval_s: Seconds = 5.0
    """pause between two lookups, seconds"""


class KubernetesApiConfig(Section):
    """The API server, for a router outside of its cluster."""

    url: BaseUrl
    """base URL"""
    token_file: PathName
    """file with the token, read for every request"""
    ca_file: PathName | None = None
    """PEM file of the CA that signed the API server's certificate; null: the system's CAs"""


class KubernetesConfig(DiscoveredEngines):
    namespace: Annotated[str, NAMESPACE] | None = None
    """namespace of the engines' pods; null: that of the router's own pod"""
    selector: str | None = Field(default=None, min_length=1)
    """label selector of the engines' pods, as for `kubectl get pods -l`; null: `inference_pool` is given instead"""
    ports: list[TcpPort] = Field(default=[8000], min_length=1, max_length=8)
    """ports of the engines in each pod; several are data-parallel ranks that listen on their own, each an
    instance
    """
    inference_pool: str | None = Field(default=None, min_length=1, max_length=253)
    """name of an InferencePool (inference.networking.k8s.io/v1) whose selector and ports are used instead, and
    followed when they change; null: `selector` and `ports`"""
    prefill_labels: dict[str, str] = {}
    """labels of the pods with role prefill; without, the label llm-d.ai/role decides"""
    decode_labels: dict[str, str] = {}
    """labels of the pods with role decode; without, the label llm-d.ai/role decides"""
    transfer: Literal["nixl", "mooncake"] = "nixl"
    """how KV moves from pods with role prefill to those with role decode, as `transfer.protocol` of an instance"""
    bootstrap_port: TcpPort = 8998
    """port of the Mooncake bootstrap server in pods with role prefill"""
    revision_label: str = Field(default="app.kubernetes.io/version", min_length=1)
    """label whose value is a pod's revision, as `revision` of an instance; the annotation warmroute.dev/revision
    overrides it"""
    api: KubernetesApiConfig | None = None
    """the API server, for a router outside of the cluster; null: what Kubernetes gives the router's pod"""
