"""The `stack` section: real vLLM engines over a real Mooncake Store on this machine, for `warmroute stack`."""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import PathName, Port, Positive, Seconds, Section

MIB = 1024 * 1024


class LocalStackConfig(Section):
    engines: Positive = Field(default=2, description="how many vLLM instances `warmroute stack` starts")
    first_port: Port = Field(default=8100, description="port of the first, the others follow it; 0: the system chooses")
    model: PathName | None = Field(
        default=None, description="folder of the model they serve; none: one of 27 M random weights is made"
    )
    served_name: str = Field(default="warm-mid", description="the name they serve it under")
    kv_cache_bytes: Positive = Field(default=512 * MIB, description="KV cache of each engine")
    max_model_len: Positive = Field(default=16384, description="longest prompt and answer together, in tokens")
    engine_args: list[str] = Field(default=[], description="further arguments of `vllm serve`")
    store: bool = Field(
        default=True, description="false: no Mooncake Store underneath, each engine has only its own cache"
    )
    pool_bytes: Positive = Field(default=2048 * MIB, description="memory of the pool, in one mooncake_client")
    buffer_bytes: Positive = Field(default=128 * MIB, description="transfer buffer of each engine")
    lease_ms: Positive = Field(default=5000, description="the master's `default_kv_lease_ttl`")
    master_port: Port = Field(default=50051, description="RPC port of mooncake_master; 0: the system chooses")
    master_http_port: Port = Field(
        default=9003, description="its HTTP port: metrics, and what the router asks; 0: the system chooses"
    )
    client_port: Port = Field(
        default=50052, description="port of the mooncake_client that owns the pool's memory; 0: the system chooses"
    )
    logs_dir: PathName | None = Field(
        default=None, description="folder of the logs, one file per process; none: `stack-logs` in the current folder"
    )
    start_timeout_s: Seconds = Field(default=180.0, description="everything must be ready within this time")
