"""The half of a prefill/decode pair that a request asks for: `kv_transfer_params`, read as vLLM's connectors do.

    mooncake   P and D get the same `transfer_id`; D finds P through its bootstrap server and waits for it there
    nixl       P's answer carries the params for D, which come back verbatim and name blocks under a lease

Facts: protocol 7.1 and 7.2; vllm .../v1/mooncake/mooncake_connector.py and .../v1/nixl/pull_scheduler.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from router.testbed.emulator.engine_cores import EngineFailed
from router.testbed.emulator.options import EngineOptions
from router.testbed.simulator.engine_types import Finish

REMOTE_KEYS = {
    "mooncake": ("remote_engine_id", "remote_bootstrap_addr", "transfer_id"),
    "nixl": ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"),
}
HOLD_AFTER: dict[str, tuple[Finish, ...]] = {"mooncake": ("length",), "nixl": ("length", "stop")}


class PrefillParams(NamedTuple):
    """This engine computes the prompt and holds its blocks under `name` until a peer fetches them."""

    name: str
    keeps_after: tuple[Finish, ...]  # the finishes after which blocks are held


class DecodeParams(NamedTuple):
    """This engine fetches the KV that a peer has computed."""

    address: str  # base URL of the peer's bootstrap server
    engine_id: str
    name: str
    cached_tokens: int | None  # tokens that P found in its caches; `None`: not reported (mooncake)


def read_transfer(options: EngineOptions, params: object, request_id: str) -> PrefillParams | DecodeParams | None:
    """Return which half of a pair the request is, `None` for neither or when its params are incomplete.

    Raises EngineFailed where the scheduler of a real engine asserts its role, and dies.
    """
    if options.transfer is None or not isinstance(params, dict):
        return None
    strict = options.transfer == "mooncake"
    if params.get("do_remote_prefill"):
        if strict and options.role == "prefill":
            raise EngineFailed("EngineCore encountered an issue: assert not self.is_kv_producer")
        return _read_decode(options, params)
    if params.get("do_remote_decode"):
        if strict and options.role == "decode":
            raise EngineFailed("EngineCore encountered an issue: assert not self.is_kv_consumer")
        name = params.get("transfer_id") if strict else request_id
        return PrefillParams(str(name), HOLD_AFTER[options.transfer]) if name else None
    return None


def _read_decode(options: EngineOptions, params: dict[str, Any]) -> DecodeParams | None:
    assert options.transfer is not None
    if any(not params.get(key) for key in REMOTE_KEYS[options.transfer]):
        return None
    if options.transfer == "mooncake":
        address, name, cached = params["remote_bootstrap_addr"], params["transfer_id"], None
    else:
        address = f"http://{params['remote_host']}:{int(params['remote_port'])}"
        name, cached = params["remote_request_id"], params.get("remote_prefill_cached_tokens")
    return DecodeParams(str(address), str(params["remote_engine_id"]), str(name), cached)


def nixl_params(
    name: str, engine_id: str, host: str, port: int, tokens: int, block_tokens: int, cached_tokens: int
) -> dict[str, Any]:
    """Params in P's answer for D: protocol 7.2, all keys of 0.32. The block ids are made up: no one reads them."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, 1 + -(-tokens // block_tokens)))],
        "remote_engine_id": engine_id,
        "remote_request_id": name,
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached_tokens,
    }
