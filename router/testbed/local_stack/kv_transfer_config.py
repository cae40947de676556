"""The kv-transfer-configs of the stack's engines: the store alone, and the two sides of prefill/decode over Mooncake.

vLLM's MooncakeConnector asks an accelerator for its number, which a CPU does not have; `inside/cpu_connector.py` is the
same connector without the question. Engines find it by PYTHONPATH, because their environment does not have ours.
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
    "kv_connector_extra_config": {"lookup_async": True},  # while one request waits for the store, the others go on
}


class EngineExtras(NamedTuple):
    """How one engine differs from the others."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    transfer: Mapping[str, Any] | None = None  # takes the place of the store's kv-transfer-config
    role: Literal["both", "prefill", "decode"] = "both"
    bootstrap_url: str | None = None  # of a prefill engine


def prefill(bootstrap_port: int, store: bool) -> EngineExtras:
    """An engine that computes prompts for others. It tells them its address at the bootstrap port (all interfaces)."""
    environment = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap_port), **ABORT}
    transfer = _peer("kv_producer", store)
    return EngineExtras((), environment, transfer, "prefill", f"http://127.0.0.1:{bootstrap_port}")


def decode(store: bool) -> EngineExtras:
    """An engine that gets computed prompts from prefill engines, and computes what it does not get."""
    return EngineExtras(environment=ABORT, transfer=_peer("kv_consumer", store), role="decode")


def set_lookup_port(transfer: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The same, with the number that the store connector names its lookup socket by.

    Engines of one host that have the same number bind the same socket: each then asks whichever worker came last, and
    waits for ever when that one has died. A number that is given already stays.
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
    both = {"connectors": [peer, dict(STORE)]}  # the peer first: what it was promised must not come from elsewhere
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    return {**multi, "kv_connector_extra_config": both}
