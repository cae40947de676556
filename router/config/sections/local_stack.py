"""The `fleet.embedded` and `stack` sections: engines that `warmroute fleet` and `warmroute stack` start
themselves.
"""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import PathName, Port, Positive, Seconds, Section

MIB = 1024 * 1024


class EmbeddedFleetConfig(Section):
    """`fleet.embedded`: simulated engines for `warmroute fleet`."""

    engines: Positive = 4
    """number of simulated engines that `warmroute fleet` starts"""
    model: str = "warm-tiny"
    """model name that they serve"""
    block_tokens: Positive = 16
    """tokens per KV cache block"""
    blocks: Positive = 4096
    """KV cache blocks per engine and rank"""
    prefill_tokens_per_s: float = Field(default=8000.0, gt=0)
    """prefill speed, prompt tokens per second"""
    decode_ms_per_token: float = Field(default=10.0, ge=0)
    """decode time per output token, milliseconds"""


class LocalStackConfig(Section):
    """`stack`: real vLLM engines over a real Mooncake Store on this machine."""

    engines: Positive = 2
    """number of vLLM instances that `warmroute stack` starts"""
    first_port: Port = 8100
    """port of the first engine, the others use the next ones; 0: the system chooses each"""
    model: PathName | None = None
    """folder of the model that they serve; null: a model of 27 M random weights is generated"""
    served_name: str = "warm-mid"
    """model name that they serve it under"""
    kv_cache_bytes: Positive = 512 * MIB
    """KV cache of each engine, bytes"""
    max_model_len: Positive = 16384
    """longest prompt and output together, tokens"""
    engine_args: list[str] = []
    """further arguments of `vllm serve`"""
    store: bool = True
    """share KV through a Mooncake Store; false: each engine has only its own cache"""
    pool_bytes: Positive = 2048 * MIB
    """memory of the pool, in one mooncake_client, bytes"""
    buffer_bytes: Positive = 128 * MIB
    """transfer buffer of each engine, bytes"""
    lease_ms: Positive = 5000
    """the master's `default_kv_lease_ttl`, milliseconds"""
    master_port: Port = 50051
    """RPC port of mooncake_master; 0: the system chooses one"""
    master_http_port: Port = 9003
    """HTTP port of mooncake_master, for metrics and queries; 0: the system chooses one"""
    client_port: Port = 50052
    """port of the mooncake_client that owns the pool's memory; 0: the system chooses one"""
    logs_dir: PathName | None = None
    """folder of the logs, one file per process; null: `stack-logs` in the current folder"""
    start_timeout_s: Seconds = 180.0
    """longest time until everything is ready, seconds; what is not ready by then is started again, once"""
