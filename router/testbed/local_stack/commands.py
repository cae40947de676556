"""What the stack runs: the command lines and environments of Mooncake's master and client and of vLLM's engines.

Pure: a `LocalStackConfig` section and paths in, `Program` values out. Everything is reached on loopback, and engines
publish their KV events at ports that the system chooses, which `GET /kv_event_sources` tells. The flags are those that
vLLM 0.32.0 on a CPU and Mooncake 0.3.13 were seen to need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from router.config.sections.local_stack import LocalStackConfig
from router.testbed.local_stack.kv_transfer_config import INSIDE, STORE, EngineExtras, set_lookup_port

HOST = "127.0.0.1"
MASTER, CLIENT = "master", "client"
HASH_ALGO = "sha256_cbor"  # made of CBOR, not of Python's pickle: the router can compute it too
METADATA_SERVER = (
    "P2PHANDSHAKE"  # Mooncake's processes find each other through the master, with no metadata server beside it
)

KV_EVENTS = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:0",
    "replay_endpoint": "tcp://*:0",
}
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": HOST,
    "PYTHONPATH": str(INSIDE),  # sitecustomize.py, and the connector for CPUs
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class Program(NamedTuple):
    """A process to start. It works when GET `ready` answers 200; a tcp:// address, when it takes connections."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    ready: str


def master(asked: LocalStackConfig, venv: Path) -> Program:
    flags = {
        "rpc_address": HOST,
        "rpc_port": asked.master_port,
        "metrics_host": HOST,
        "metrics_port": asked.master_http_port,
        "rpc_thread_num": 2,
        "default_kv_lease_ttl": asked.lease_ms,
        "logtostderr": "true",
    }
    return Program(MASTER, _mooncake(venv, "mooncake_master", flags), {}, f"{master_url(asked)}/health")


def client(asked: LocalStackConfig, venv: Path) -> Program:
    """The owner of the pool's memory: what is in the pool outlives every engine, but not this process."""
    flags = {
        "host": HOST,
        "port": asked.client_port,
        "global_segment_size": asked.pool_bytes,
        "master_server_address": f"{HOST}:{asked.master_port}",
        "metadata_server": METADATA_SERVER,
        "protocol": "tcp",
        "logtostderr": "true",
    }
    return Program(CLIENT, _mooncake(venv, "mooncake_client", flags), {}, f"tcp://{HOST}:{asked.client_port}")


def master_url(asked: LocalStackConfig) -> str:
    """Where the master's HTTP interface is: metrics, and what the router asks."""
    return f"http://{HOST}:{asked.master_http_port}"


def mooncake_config(asked: LocalStackConfig) -> dict[str, object]:
    """What MOONCAKE_CONFIG_PATH names for the engines: they bring no memory of their own into the pool."""
    return {
        "mode": "standalone-store",
        "metadata_server": METADATA_SERVER,
        "master_server_address": f"{HOST}:{asked.master_port}",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
        "local_buffer_size": asked.buffer_bytes,
    }


class EngineProcess(NamedTuple):
    """Where one engine runs, and with what."""

    name: str
    port: int
    venv: Path
    mooncake: Path | None  # the file with `mooncake_config`; None: no store
    threads: int  # that compute
    preload: Path | None = None  # a memory allocator to take instead of the C library's


def engine(asked: LocalStackConfig, place: EngineProcess, extra: EngineExtras) -> Program:
    """One vLLM server."""
    command = [str(place.venv / "bin" / "vllm"), "serve", str(asked.model), "--served-model-name", asked.served_name]
    command += ["--host", HOST, "--port", str(place.port), "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--max-model-len", str(asked.max_model_len), "--max-num-seqs", "8"]
    command += ["--kv-cache-memory-bytes", str(asked.kv_cache_bytes), "--prefix-caching-hash-algo", HASH_ALGO]
    command += ["--enable-prompt-tokens-details", "--kv-events-config", json.dumps(KV_EVENTS)]
    environment = {**ENGINE_ENVIRONMENT, "OMP_NUM_THREADS": str(place.threads)}
    if place.preload is not None:
        environment["LD_PRELOAD"] = str(place.preload)
    transfer: Mapping[str, Any] | None = extra.transfer
    if place.mooncake is not None:
        environment["MOONCAKE_CONFIG_PATH"] = str(place.mooncake)
        transfer = transfer or STORE
    if transfer is not None:
        command += ["--kv-transfer-config", json.dumps(set_lookup_port(transfer, place.port))]
    command += [*asked.engine_args, *extra.arguments]
    return Program(place.name, command, {**environment, **extra.environment}, f"http://{HOST}:{place.port}/health")


def _mooncake(venv: Path, binary: str, flags: Mapping[str, object]) -> list[str]:
    """The installed command: a script that becomes the binary under the same PID."""
    return [str(venv / "bin" / binary), *(f"-{flag}={value}" for flag, value in flags.items())]
