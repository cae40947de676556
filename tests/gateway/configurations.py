"""Envoy configurations of the tests: both profiles of the picker, over a cluster of any address or listed engines."""

from __future__ import annotations

import json
from typing import Any

V3 = "type.googleapis.com/envoy.extensions"
DESTINATION = "x-gateway-destination-endpoint"
CONFORMING = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
THIN = CONFORMING | {"response_body_mode": "STREAMED", "response_trailer_mode": "SKIP"}
BUFFERED = {
    "request_header_mode": "SEND",
    "request_body_mode": "BUFFERED",
    "request_trailer_mode": "SKIP",
    "response_header_mode": "SEND",
    "response_body_mode": "STREAMED",
    "response_trailer_mode": "SKIP",
}
UNLIMITED = {"thresholds": [{"max_connections": 40000, "max_pending_requests": 40000, "max_requests": 40000}]}


def configuration(
    picker_port: int,
    mode: dict[str, str] | None = CONFORMING,
    *,
    engines: list[str] | None = None,
    tls: bool = False,
    logs: bool = False,
    fail_open: bool = False,
    strip: bool = True,
    subset_header: bool = False,
    attributes: tuple[str, ...] = ("upstream.address", "response.code_details"),
) -> str:
    """Return a configuration with a listener `inference` in front of the clusters `engines` and `picker`.

    Without `engines` the cluster takes any one address; with them, lists of those that it knows, tried in order, and
    round robin where nobody chose. Without a `mode` nobody is asked, and there is no cluster `picker`.
    `subset_header`: the header x-test-subset becomes the hint that a gateway gives. `logs`: access logs go to the
    picker, with the usage of event streams.
    """
    manager: dict[str, Any] = {
        "@type": f"{V3}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "inference",
        "stream_idle_timeout": "3600s",
        "use_remote_address": True,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route(engines)]}]},
        "http_filters": [
            *([_subset_filter()] if subset_header else []),
            *(_usage_filters() if logs else []),
            *([] if mode is None else [_ext_proc(mode, fail_open, attributes)]),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{V3}.filters.http.router.v3.Router"},
            },
        ],
    }
    if strip:
        manager["early_header_mutation_extensions"] = [_early_removal()]
    if logs:
        manager["access_log"] = [_access_log()]
    filter_ = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    listener = {
        "name": "inference",
        "address": _address(0),
        "per_connection_buffer_limit_bytes": 1048576,
        "filter_chains": [{"filters": [filter_]}],
    }
    clusters = [_any_engine() if engines is None else _listed_engines(engines)]
    clusters += [] if mode is None else [_picker(picker_port, tls)]
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": clusters}})


def _address(port: int, host: str = "127.0.0.1") -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _route(engines: list[str] | None) -> dict[str, Any]:
    route: dict[str, Any] = {"cluster": "engines", "timeout": "0s", "idle_timeout": "3600s"}
    if engines is not None:
        route["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": 2,
        }
    return {"match": {"prefix": "/"}, "route": route}


def _early_removal() -> dict[str, Any]:
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{V3}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [{"remove": DESTINATION}],
        },
    }


def _ext_proc(mode: dict[str, str], fail_open: bool, attributes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{V3}.filters.http.ext_proc.v3.ExternalProcessor",
            "failure_mode_allow": fail_open,
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "0s"},
            "message_timeout": "600s",
            "processing_mode": mode,
            "response_attributes": list(attributes),
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb", "warmroute"]},
            },
        },
    }


def _subset_filter() -> dict[str, Any]:
    hint = {"metadata_namespace": "envoy.lb.subset_hint", "key": f"{DESTINATION}-subset", "type": "STRING"}
    return {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": f"{V3}.filters.http.header_to_metadata.v3.Config",
            "request_rules": [{"header": "x-test-subset", "on_header_present": hint, "remove": True}],
        },
    }


def _usage_rules() -> list[dict[str, Any]]:
    paths = {
        "prompt_tokens": ("usage", "prompt_tokens"),
        "completion_tokens": ("usage", "completion_tokens"),
        "cached_tokens": ("usage", "prompt_tokens_details", "cached_tokens"),
    }
    return [
        {
            "selectors": [{"key": key} for key in path],
            "on_present": {"metadata_namespace": "warmroute", "key": name, "type": "NUMBER"},
        }
        for name, path in paths.items()
    ]


def _usage_filters() -> list[dict[str, Any]]:
    return [
        {
            "name": "envoy.filters.http.sse_to_metadata",
            "typed_config": {
                "@type": f"{V3}.filters.http.sse_to_metadata.v3.SseToMetadata",
                "response_rules": {
                    "max_event_size": 65536,
                    "content_parser": {
                        "name": "envoy.content_parsers.json",
                        "typed_config": {
                            "@type": f"{V3}.content_parsers.json.v3.JsonContentParser",
                            "rules": [{"rule": rule} for rule in _usage_rules()],
                        },
                    },
                },
            },
        },
        {
            "name": "envoy.filters.http.json_to_metadata",
            "typed_config": {
                "@type": f"{V3}.filters.http.json_to_metadata.v3.JsonToMetadata",
                "response_rules": {"rules": _usage_rules()},
            },
        },
    ]


def _access_log() -> dict[str, Any]:
    return {
        "name": "envoy.access_loggers.http_grpc",
        "typed_config": {
            "@type": f"{V3}.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": "warmroute",
                "transport_api_version": "V3",
                "buffer_flush_interval": "0.1s",
                "buffer_size_bytes": 65536,
                "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            },
        },
    }


def _any_engine() -> dict[str, Any]:
    return {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "2s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
        "circuit_breakers": UNLIMITED,
    }


def _listed_engines(engines: list[str]) -> dict[str, Any]:
    policies = f"{V3}.load_balancing_policies"
    round_robin = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {"@type": f"{policies}.round_robin.v3.RoundRobin"},
    }
    override = {
        "@type": f"{policies}.override_host.v3.OverrideHost",
        "override_host_sources": [
            {"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}},
            {"header": DESTINATION},
        ],
        "fallback_policy": {"policies": [{"typed_extension_config": round_robin}]},
    }
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": override}
    hosts = [engine.rpartition(":") for engine in engines]
    endpoints = [{"endpoint": {"address": _address(int(port), host)}} for host, _, port in hosts]
    return {
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "circuit_breakers": UNLIMITED,
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": endpoints}]},
    }


def _picker(port: int, tls: bool) -> dict[str, Any]:
    protocol = f"{V3}.upstreams.http.v3.HttpProtocolOptions"
    windows = {
        "initial_stream_window_size": 1048576,
        "initial_connection_window_size": 8388608,
        "max_concurrent_streams": 10000,
    }
    check: dict[str, Any] = {
        "timeout": "1s",
        "interval": "0.2s",
        "no_traffic_interval": "0.2s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
    }
    cluster: dict[str, Any] = {
        "name": "picker",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "connect_timeout": "2s",
        "circuit_breakers": UNLIMITED,
        "health_checks": [check],
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": protocol,
                "explicit_http_config": {"http2_protocol_options": windows},
            }
        },
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}],
        },
    }
    if tls:
        check["tls_options"] = {"alpn_protocols": ["h2"]}
        context = {
            "@type": f"{V3}.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2"]},
        }
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    return cluster
