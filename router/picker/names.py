"""Names that a gateway and its picker share: those of the endpoint picker protocol 1.0.0, and of Envoy's
services.
"""

from __future__ import annotations

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH = "grpc.health.v1.Health"
ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"

DESTINATION = "x-gateway-destination-endpoint"
"""The choice: a request header, and a key in the metadata namespace `LB`, both with the same value."""
LB = "envoy.lb"
SERVED = "x-gateway-destination-endpoint-served"
"""Key in `LB` by which a gateway says who served. Plain Envoy says it by the attribute `UPSTREAM`."""
SUBSET_HINT = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
"""Key in `SUBSET_HINT`: the endpoints among which to choose."""
ATTRIBUTES = "envoy.filters.http.ext_proc"
UPSTREAM = "upstream.address"
DETAILS = "response.code_details"
OWN = "warmroute"
"""Metadata namespace of our own: Envoy brings `RECORD` back in its access log, beside the `usage` that it
extracted.
"""
RECORD = "record"
DROPPED_REASON = b"x-llm-d-request-dropped-reason"
"""Header of refusals, by which llm-d says why."""
PREFILLER = "x-prefiller-host-port"
"""Request header: the prefill engine of a pair, for llm-d's sidecar at the decode engine."""
FAIRNESS_IDS = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
"""Request headers: whom a request is counted for, the newer name first."""
TEST_SELECTION = b"test-epp-endpoint-selection"
"""Request header of the Gateway API inference extension's conformance tests: the endpoints to choose among."""
TEST_SERVED = "x-conformance-test-served-endpoint"
"""Response header that they read: the endpoint that the gateway says it used."""
