"""The kv-transfer-configs of the stack's engines: the store alone, and the two sides of prefill/decode over Mooncake.

vLLM's MooncakeConnector asks an accelerator for its number, which a CPU does not have; `inside/cpu_connector.py` is the
same connector without that call. Engines find it by PYTHONPATH, because the router is not in their environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

INSIDE = Path(__file__).resolve().parent / "inside"

ABORT = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "60"}  # s; by default blocks for a dead peer are held for 8 minutes

STORE: Mapping[str, Any] = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",  # the default lets a request fail whose blocks the pool has evicted
    "kv_connector_extra_config": {"lookup_async": True},  # the others go on while one request waits for the store
}


class EngineExtras(NamedTuple):
    """The differences of one engine from the others."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    transfer: Mapping[str, Any] | None = None  # replaces the store's kv-transfer-config
    role: Literal["both", "prefill", "decode"] = "both"
    bootstrap_url: str | None = None  # of a prefill engine


def prefill(bootstrap_port: int, store: bool) -> EngineExtras:
    """An engine that computes prompts for others, and publishes its address at the bootstrap port (all interfaces)."""
    environment = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap_port), **ABORT}
    transfer = _peer("kv_producer", store)
    return EngineExtras((), environment, transfer, "prefill", f"http://127.0.0.1:{bootstrap_port}")


def decode(store: bool) -> EngineExtras:
    """An engine that fetches computed prompts from prefill engines, and computes what it does not get."""
    return EngineExtras(environment=ABORT, transfer=_peer("kv_consumer", store), role="decode")


def set_lookup_port(transfer: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the config with the number by which the store connector names its lookup socket; one that is set stays.

    Engines of one host with the same number bind the same socket: each then asks whichever worker bound it last, and
    waits for ever when that one has died.
    """
    extra = dict(transfer.get("kv_connector_extra_config", {}))
    if "connectors" in extra:
        extra["connectors"] = [set_lookup_port(child, number) for child in extra["connectors"]]
    elif transfer["kv_connector"] == STORE["kv_connector"]:
        extra = {"lookup_rpc_port": number} | extra
    else:
        return transfer
    return {**transfer, "kv_connector_extra_config": extra}


def _peer(role: str, store: bool) -> Mapping[str, Any]:
    peer = {
        "kv_connector": "MooncakeConnector",
        "kv_connector_module_path": "cpu_connector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
    }
    if not store:
        return peer
    both = {
        "connectors": [peer, dict(STORE)]
    }  # the peer first: KV that a peer holds for this engine must come from there
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    return {**multi, "kv_connector_extra_config": both}
