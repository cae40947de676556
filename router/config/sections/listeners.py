"""The sections `listen`, `picker`, `admin`, `metrics`, `limits` and `edge`: who gets in, within which bounds."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import Field, IPvAnyNetwork, model_validator

from router.config.sections.base import SHA256, PathName, Port, Positive, Seconds, Section, Shape


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or address, can only be reached from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class TlsConfig(Section):
    cert_file: PathName
    """PEM certificate chain of the listener"""
    key_file: PathName
    """PEM private key of the listener"""


class ListenConfig(Section):
    host: str = "0.0.0.0"
    """address of the public listener"""
    port: Port = 8000
    """port of the public listener; 0: the system chooses one"""
    tls: TlsConfig | None = None
    """serve HTTPS with this certificate; null: plain HTTP"""
    header_timeout_s: Seconds = 10.0
    """longest time to receive a complete request head, seconds"""
    body_idle_timeout_s: Seconds = 30.0
    """longest pause between two parts of a request body, seconds; a body must also come at 500 bytes per second,
    and be behind that by no more than this, or 20 seconds where that is longer
    """
    header_bytes: Positive = 65536
    """largest request head (request line and headers), bytes"""
    trusted_proxies: list[IPvAnyNetwork] = []
    """networks of the load balancers in front, as `10.0.0.0/8`; a request from there is counted for the last
    address in its `X-Forwarded-For` that is not in these networks
    """


GrpcTls = Literal["self-signed", "off"] | TlsConfig


class PickerConfig(Section):
    """An endpoint picker: a gateway (Envoy, or any other of the Gateway API inference extension) asks here which
    engine gets a request, and sends it there itself.
    """

    host: str = "0.0.0.0"
    """address of the gRPC listeners"""
    port: Port = 9002
    """port of the gRPC services for gateways: ext_proc, access logs and health; 0: the system chooses one"""
    health_port: Port = 9003
    """port of the gRPC health service alone, without TLS, for probes; 0: the system chooses one"""
    tls: GrpcTls = "self-signed"
    """self-signed: TLS with a certificate made at start, which gateways do not check; off: clear text; or the
    certificate of `cert_file` and `key_file`"""
    fallbacks: int = Field(default=0, ge=0, le=8)
    """endpoints named after the chosen one, for gateways that try them in turn (Envoy's policy override_host); 0:
    none, as a cluster of type ORIGINAL_DST takes one only
    """
    testing: bool = False
    """obey the headers of the Gateway API inference extension's conformance tests, and route every path: for tests,
    as clients can then choose their engine
    """


class AdminTokenConfig(Section):
    name: str
    """name of the holder, for logs and the audit log"""
    hash: Annotated[str, SHA256]
    """sha256 of the token in hex (`printf %s TOKEN | sha256sum`)"""
    rights: list[Literal["read", "write", "override"]] = ["read"]
    """read: all GET endpoints and explain; write: drain instances, forget their caches, change policies and
    experiments; override: choose the policy of a single request by header"""


class AdminConfig(Section):
    host: str = "127.0.0.1"
    """address of the admin listener, which is never the public one"""
    port: Port = 8001
    """port of the admin listener; 0: the system chooses one"""
    tokens: list[AdminTokenConfig] = []
    """bearer tokens; empty: no token is needed, allowed only on a loopback host"""
    audit_file: PathName | None = None
    """JSON lines file of every policy switch (who, when, what, the plan). Beside it, in a file of its name with
    `.state`, is what operators have set, which a restart restores: drains, policies, experiments, admission,
    rollbacks. null: the last 1,000 entries in memory, and a restart starts as configured"""

    @model_validator(mode="after")
    def _require_tokens_beyond_loopback(self) -> AdminConfig:
        if not self.tokens and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} lets other machines use the admin API, and it has no tokens: write 127.0.0.1, or "
                "add `tokens: [{name: NAME, hash: HASH}]` (HASH: `printf %s TOKEN | sha256sum`)"
            )
        return self


class MetricsConfig(Section):
    """GET /metrics, for Prometheus. It names models, engines and policies, and how they are doing."""

    port: Port | None = None
    """port of a listener for the metrics alone, which are then not on the public one; 0: the system chooses one;
    null: the public listener serves them
    """
    host: str = "127.0.0.1"
    """address of that listener"""
    token_hash: Annotated[str, SHA256] | None = None
    """sha256 in hex of the bearer token that a scrape must have (`printf %s TOKEN | sha256sum`); null: none is
    needed
    """


class LimitsConfig(Section):
    body_bytes: Positive = 32 * 1024 * 1024
    """largest request body, bytes; a larger one is answered with 413"""
    body_budget_bytes: Positive = 1024 * 1024 * 1024
    """memory for all request bodies together, bytes, for one client at most four times what is free; beyond it
    requests are answered with 429
    """
    concurrent: Positive = 2048
    """requests in progress at once, of one client at most four times what is free; beyond it requests are answered
    with 429 and Retry-After. Eight times as many connections may be open, or a third of the process's open files
    """
    connect_timeout_s: Seconds = 2.0
    """longest time to connect to an engine, seconds"""
    first_byte_timeout_s: Seconds = 600.0
    """longest time from sending a request to the first byte of its answer, seconds"""
    idle_timeout_s: Seconds = 120.0
    """longest pause inside an answer, seconds"""
    keepalive_s: Seconds = 4.0
    """how long an idle connection to an engine stays open, seconds; must be below the engine's own limit (vLLM: 5
    s)
    """
    retry_ratio: float = Field(default=0.2, ge=0, le=1)
    """retries allowed per request over time, over the whole router"""
    retry_burst: int = Field(default=10, ge=0)
    """retries saved up at most, and there from the start; 0: none are made, whatever `retry_ratio` is"""
    grace_s: Seconds = 30.0
    """time that requests in progress have to finish after SIGTERM, seconds"""
    continuation_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """memory for continuing streamed answers on another engine, bytes: their token ids (about 6 per token of prompt
    and answer), or their text without ids; what does not fit is not continued; 0: none is
    """
    responses_kept: int = Field(default=10_000, ge=0)
    """stored response ids whose target is remembered, of all tenants; beyond it the oldest of the tenant that holds
    most is forgotten; 0: none is"""


class ExtraEndpoint(Section):
    path: Annotated[str, Shape(r"^/[\s\S]*$", "a path that begins with /, such as /v1/rerank")]
    """exact path to forward"""
    method: Literal["GET", "POST"] = "POST"
    """its HTTP method"""


class EdgeConfig(Section):
    extra_endpoints: list[ExtraEndpoint] = []
    """paths to forward beyond the built-in ones, placed by load alone"""
    strip_fields: list[str] = ["kv_transfer_params", "vllm_xargs"]
    """top-level JSON fields that are removed from client requests"""
    strip_headers: list[str] = ["x-vllm-priority"]
    """headers that are removed from client requests; x-warmroute-* and those that steer engines, such as
    x-data-parallel-rank and x-prefiller-host-port, are always removed"""
    cors_origins: list[str] = []
    """origins whose pages may use the router in a browser (CORS), such as `https://chat.example.org`; `*`: any; []:
    none, as vLLM's own default, and answers of engines keep the headers that their engine sets"""
