"""kv-transfer-configs, and that the files under configs/ are what the stack runs."""

from __future__ import annotations

import json

from router.testbed.local_stack.kv_transfer_config import INSIDE, STORE, decode, prefill, set_lookup_port
from tests.paths import CONFIGS

MOONCAKE = CONFIGS / "mooncake"


def test_the_file_for_the_store_is_what_runs() -> None:
    assert json.loads((MOONCAKE / "store.kv-transfer.json").read_text()) == set_lookup_port(STORE, 0)


def test_the_store_inside_of_many_gets_its_number() -> None:
    transfer = prefill(8998, store=True).transfer
    assert transfer is not None
    peer, store = set_lookup_port(transfer, 8100)["kv_connector_extra_config"]["connectors"]
    assert "lookup_rpc_port" not in peer["kv_connector_extra_config"]
    assert store["kv_connector_extra_config"]["lookup_rpc_port"] == 8100
    assert "lookup_rpc_port" not in STORE["kv_connector_extra_config"]


def test_a_number_that_is_given_stays() -> None:
    given = {**STORE, "kv_connector_extra_config": {"lookup_rpc_port": 5}}
    assert set_lookup_port(given, 8100)["kv_connector_extra_config"]["lookup_rpc_port"] == 5


def test_the_two_sides_of_a_pair() -> None:
    first, second = prefill(8998, store=False), decode(store=False)
    assert first.transfer is not None
    assert second.transfer is not None
    assert (first.transfer["kv_role"], second.transfer["kv_role"]) == ("kv_producer", "kv_consumer")
    assert first.environment["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "8998"
    assert (first.role, first.bootstrap_url) == ("prefill", "http://127.0.0.1:8998")
    assert (INSIDE / "cpu_connector.py").exists(), "what the kv_connector_module_path names"
