"""Command lines and environments of the stack's programs: Mooncake's master and client, and vLLM's engines.

The functions are pure: they take a `LocalStackConfig` section and paths, and return `Program` values. All programs
listen on loopback, and engines publish their KV events at ports that the system chooses and `GET /kv_event_sources`
reports. vLLM 0.32.0 on a CPU and Mooncake 0.3.13 were found to need these flags.

Engines get a kv-transfer-config for the store alone, or for one side of prefill/decode over Mooncake. vLLM's
MooncakeConnector queries the accelerator's number, which a CPU does not have; `inside/cpu_connector.py` is the same
connector without this call. Engines find it by PYTHONPATH, because the router is not in their environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from router.config.sections.local_stack import LocalStackConfig

INSIDE = Path(__file__).resolve().parent / "inside"

ABORT = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "60"}  # s; by default blocks for a dead peer are held for 8 minutes

STORE: Mapping[str, Any] = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",  # by default, a request fails whose blocks the pool has evicted
    "kv_connector_extra_config": {"lookup_async": True},  # other requests continue while one waits for the store
}

HOST = "127.0.0.1"
MASTER, CLIENT = "master", "client"
HASH_ALGO = "sha256_cbor"  # of CBOR, not of Python's pickle: the router can compute it too
METADATA_SERVER = "P2PHANDSHAKE"  # Mooncake's processes find each other only through the master

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


class EngineExtras(NamedTuple):
    """Settings of one engine that differ from the others'."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    transfer: Mapping[str, Any] | None = None  # replaces the store's kv-transfer-config
    role: Literal["both", "prefill", "decode"] = "both"
    bootstrap_url: str | None = None  # of a prefill engine


class Program(NamedTuple):
    """A process to start. It is ready when GET `ready` answers 200, or a tcp:// address accepts connections."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    ready: str


def master(config: LocalStackConfig, venv: Path) -> Program:
    """Return Mooncake's master, with its HTTP interface."""
    flags = {
        "rpc_address": HOST,
        "rpc_port": config.master_port,
        "metrics_host": HOST,
        "metrics_port": config.master_http_port,
        "rpc_thread_num": 2,
        "default_kv_lease_ttl": config.lease_ms,
        "logtostderr": "true",
    }
    return Program(MASTER, _mooncake(venv, "mooncake_master", flags), {}, f"{master_url(config)}/health")


def client(config: LocalStackConfig, venv: Path) -> Program:
    """Return Mooncake's client, which owns the pool: its contents outlive every engine, but not this process."""
    flags = {
        "host": HOST,
        "port": config.client_port,
        "global_segment_size": config.pool_bytes,
        "master_server_address": f"{HOST}:{config.master_port}",
        "metadata_server": METADATA_SERVER,
        "protocol": "tcp",
        "logtostderr": "true",
    }
    return Program(CLIENT, _mooncake(venv, "mooncake_client", flags), {}, f"tcp://{HOST}:{config.client_port}")


def master_url(config: LocalStackConfig) -> str:
    """Return the base URL of the master's HTTP interface, for metrics and the router's queries."""
    return f"http://{HOST}:{config.master_http_port}"


def mooncake_config(config: LocalStackConfig) -> dict[str, object]:
    """Return the content of the file that MOONCAKE_CONFIG_PATH names. Engines add no memory to the pool."""
    return {
        "mode": "standalone-store",
        "metadata_server": METADATA_SERVER,
        "master_server_address": f"{HOST}:{config.master_port}",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
        "local_buffer_size": config.buffer_bytes,
    }


class EngineProcess(NamedTuple):
    """The place of one engine on this machine: name, port, environment and threads."""

    name: str
    port: int
    venv: Path
    mooncake: Path | None  # the file with `mooncake_config`; `None`: no store
    threads: int  # for computing
    preload: Path | None = None  # a memory allocator to use instead of the C library's


def engine(config: LocalStackConfig, process: EngineProcess, extra: EngineExtras) -> Program:
    """Return one vLLM server."""
    command = [str(process.venv / "bin" / "vllm"), "serve", str(config.model)]
    command += ["--served-model-name", config.served_name]
    command += ["--host", HOST, "--port", str(process.port), "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--max-model-len", str(config.max_model_len), "--max-num-seqs", "8"]
    command += ["--kv-cache-memory-bytes", str(config.kv_cache_bytes), "--prefix-caching-hash-algo", HASH_ALGO]
    command += ["--enable-prompt-tokens-details", "--kv-events-config", json.dumps(KV_EVENTS)]
    environment = {**ENGINE_ENVIRONMENT, "OMP_NUM_THREADS": str(process.threads)}
    if process.preload is not None:
        environment["LD_PRELOAD"] = str(process.preload)
    transfer: Mapping[str, Any] | None = extra.transfer
    if process.mooncake is not None:
        environment["MOONCAKE_CONFIG_PATH"] = str(process.mooncake)
        transfer = transfer or STORE
    if transfer is not None:
        command += ["--kv-transfer-config", json.dumps(set_lookup_port(transfer, process.port))]
    command += [*config.engine_args, *extra.arguments]
    return Program(process.name, command, {**environment, **extra.environment}, f"http://{HOST}:{process.port}/health")


def _mooncake(venv: Path, binary: str, flags: Mapping[str, object]) -> list[str]:
    """Return the command line of an installed binary: a script that execs it, so that the PID stays the same."""
    return [str(venv / "bin" / binary), *(f"-{flag}={value}" for flag, value in flags.items())]


def prefill(bootstrap_port: int, store: bool) -> EngineExtras:
    """Return the extras of an engine that computes prompts for others, and publishes its address at the bootstrap
    port (all interfaces).
    """
    environment = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap_port), **ABORT}
    transfer = _peer("kv_producer", store)
    return EngineExtras((), environment, transfer, "prefill", f"http://127.0.0.1:{bootstrap_port}")


def decode(store: bool) -> EngineExtras:
    """Return the extras of an engine that fetches computed prompts from prefill engines and computes the rest."""
    return EngineExtras(environment=ABORT, transfer=_peer("kv_consumer", store), role="decode")


def set_lookup_port(transfer: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the config with the number by which the store connector names its lookup socket. A set number is kept.

    Engines of one host with the same number bind the same socket: each then queries the worker that bound it last,
    and waits for ever if this worker has died.
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
    both = {"connectors": [peer, dict(STORE)]}  # the peer first: KV that it holds for this engine must come from it
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    return {**multi, "kv_connector_extra_config": both}
