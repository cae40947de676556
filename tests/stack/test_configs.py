"""Every file under configs/mooncake is read by the component that it is for, in the stack's own environment."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from router.lab.local_stack.install import stack_venv
from tests.paths import CONFIGS

pytestmark = pytest.mark.stack

MOONCAKE = CONFIGS / "mooncake"
TRANSFER = sorted(MOONCAKE.glob("*.kv-transfer.json"))
CLIENTS = sorted(set(MOONCAKE.glob("*.json")) - set(TRANSFER))

READ = """
import dataclasses, json, sys
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.mooncake_store import MooncakeStoreConfig

def transfer(file):
    config = KVTransferConfig(**json.load(open(file)))
    children = [KVTransferConfig(**child) for child in config.kv_connector_extra_config.get("connectors", [])]
    for one in (config, *children):
        assert one.kv_connector in KVConnectorFactory._registry, one.kv_connector
    return {"connectors": [one.kv_connector for one in children or [config]],
            "policies": [one.kv_load_failure_policy for one in (config, *children)]}

kind, *files = sys.argv[1:]
read = {"transfer": transfer, "client": lambda file: dataclasses.asdict(MooncakeStoreConfig.from_file(file))}[kind]
print("READ", json.dumps({file.rpartition("/")[2]: read(file) for file in files}))
"""
READ_LMCACHE = """
import json, sys
from lmcache.v1.config import LMCacheEngineConfig
config = LMCacheEngineConfig.from_file(sys.argv[1])
config.validate()
print("READ", json.dumps({"lmcache": {"url": config.remote_url, "chunk": config.chunk_size,
    "algo": config.pre_caching_hash_algorithm, "store": config.extra_config}}))
"""


def read(program: str, *arguments: str) -> dict[str, Any]:
    """Return what the program prints after READ, run with the stack's Python."""
    python = stack_venv() / "bin" / "python"
    done = subprocess.run([python, "-c", program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    answer: dict[str, Any] = json.loads(line.removeprefix("READ "))
    return answer


def test_kv_transfer_configs_are_vllm_s() -> None:
    seen = read(READ, "transfer", *map(str, TRANSFER))
    assert {name: one["connectors"] for name, one in seen.items()} == {
        "store.kv-transfer.json": ["MooncakeStoreConnector"],
        "prefill-store.kv-transfer.json": ["MooncakeConnector", "MooncakeStoreConnector"],
        "decode-store.kv-transfer.json": ["MooncakeConnector", "MooncakeStoreConnector"],
        "lmcache-nixl.kv-transfer.json": ["NixlConnector", "LMCacheConnectorV1"],
    }
    assert {policy for one in seen.values() for policy in one["policies"]} == {"recompute"}


def test_mooncake_clients_are_vllm_s() -> None:
    seen = read(READ, "client", *map(str, CLIENTS))
    assert {name: (one["mode"], one["protocol"], one["master_server_address"]) for name, one in seen.items()} == {
        "tcp.json": ("embedded", "tcp", "127.0.0.1:50051"),
        "rdma.json": ("embedded", "rdma", "mooncake-master:50051"),
        "standalone.json": ("standalone-store", "tcp", "127.0.0.1:50051"),
        "ha-etcd.json": ("standalone-store", "rdma", "etcd://etcd-0:2379;etcd-1:2379;etcd-2:2379"),
    }


def test_lmcache_s_file_is_lmcache_s() -> None:
    """LMCache's reader of configurations accepts it. Its use needs a GPU, and is not run here."""
    seen = read(READ_LMCACHE, str(MOONCAKE / "lmcache.yaml"))["lmcache"]
    assert (seen["url"], seen["chunk"]) == ("mooncakestore://mooncake-master:50051/", 256)
    assert seen["algo"] == "sha256_cbor"
    assert (seen["store"]["protocol"], seen["store"]["global_segment_size"]) == ("rdma", 0)
