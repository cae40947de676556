"""Which half of a pair a request is, by role, connector and what its `kv_transfer_params` say."""

from __future__ import annotations

from typing import Any

import pytest

from router.lab.emulator.disaggregation import DecodeParams, PrefillParams, read_transfer
from router.lab.emulator.engine_cores import EngineFailed
from router.lab.emulator.options import EngineOptions

MOONCAKE = {
    "do_remote_prefill": True,
    "remote_engine_id": "P0",
    "remote_bootstrap_addr": "http://10.0.0.1:8998",
    "transfer_id": "xfer-1",
}
NIXL = {
    "do_remote_prefill": True,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "P0",
    "remote_request_id": "cmpl-1",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_prefill_cached_tokens": 16,
}
ASKED = {"do_remote_decode": True, "transfer_id": "xfer-1"}


def half(params: Any, **options: Any) -> PrefillParams | DecodeParams | None:
    return read_transfer(EngineOptions(**({"transfer": "mooncake"} | options)), params, "cmpl-7")


def test_both_halves_of_both_connectors() -> None:
    assert half(MOONCAKE) == DecodeParams("http://10.0.0.1:8998", "P0", "xfer-1", None)
    assert half(NIXL, transfer="nixl") == DecodeParams("http://10.0.0.1:5600", "P0", "cmpl-1", 16)
    assert half(ASKED) == PrefillParams("xfer-1", ("length",))
    assert half(ASKED, transfer="nixl") == PrefillParams("cmpl-7", ("length", "stop"))


@pytest.mark.parametrize("params", [None, [], "x", {}, {"prompt_token_ids": [1]}, {"do_remote_prefill": False}])
def test_other_requests_are_no_half(params: Any) -> None:
    assert half(params) is None
    assert half(params, transfer="nixl") is None


@pytest.mark.parametrize(("transfer", "params"), [("mooncake", MOONCAKE), ("nixl", NIXL)])
def test_with_a_remote_key_missing_it_is_computed_here(transfer: str, params: dict[str, Any]) -> None:
    for key in params.keys() - {"do_remote_prefill", "remote_prefill_cached_tokens"}:
        assert half(params | {key: None}, transfer=transfer) is None
    assert half({"do_remote_decode": True}) is None, "nobody could fetch it"


def test_roles_are_asserted_by_mooncake_only() -> None:
    with pytest.raises(EngineFailed, match="producer"):
        half(MOONCAKE, role="prefill")
    with pytest.raises(EngineFailed, match="consumer"):
        half(ASKED, role="decode")
    assert isinstance(half(NIXL, transfer="nixl", role="prefill"), DecodeParams)
    assert half(MOONCAKE, transfer=None, role="prefill") is None
