"""The `fleet.embedded` and `stack` sections: engines that `warmroute fleet` and `warmroute stack` start themselves."""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import PathName, Port, Positive, Seconds, Section

MIB = 1024 * 1024


class EmbeddedFleetConfig(Section):
    """`fleet.embedded`: simulated engines for `warmroute fleet`."""

    engines: Positive = Field(default=4, description="number of simulated engines that `warmroute fleet` starts")
    model: str = Field(default="warm-tiny", description="model name that they serve")
    block_tokens: Positive = Field(default=16, description="tokens per KV cache block")
    blocks: Positive = Field(default=4096, description="KV cache blocks per engine and rank")
    prefill_tokens_per_s: float = Field(default=8000.0, gt=0, description="prefill speed, prompt tokens per second")
    decode_ms_per_token: float = Field(default=10.0, ge=0, description="decode time per output token, milliseconds")


class LocalStackConfig(Section):
    """`stack`: real vLLM engines over a real Mooncake Store on this machine."""

    engines: Positive = Field(default=2, description="number of vLLM instances that `warmroute stack` starts")
    first_port: Port = Field(
        default=8100, description="port of the first engine, the others use the next ones; 0: the system chooses each"
    )
    model: PathName | None = Field(
        default=None,
        description="folder of the model that they serve; null: a model of 27 M random weights is generated",
    )
    served_name: str = Field(default="warm-mid", description="model name that they serve it under")
    kv_cache_bytes: Positive = Field(default=512 * MIB, description="KV cache of each engine, bytes")
    max_model_len: Positive = Field(default=16384, description="longest prompt and output together, tokens")
    engine_args: list[str] = Field(default=[], description="further arguments of `vllm serve`")
    store: bool = Field(
        default=True, description="share KV through a Mooncake Store; false: each engine has only its own cache"
    )
    pool_bytes: Positive = Field(default=2048 * MIB, description="memory of the pool, in one mooncake_client, bytes")
    buffer_bytes: Positive = Field(default=128 * MIB, description="transfer buffer of each engine, bytes")
    lease_ms: Positive = Field(default=5000, description="the master's `default_kv_lease_ttl`, milliseconds")
    master_port: Port = Field(default=50051, description="RPC port of mooncake_master; 0: the system chooses one")
    master_http_port: Port = Field(
        default=9003, description="HTTP port of mooncake_master, for metrics and queries; 0: the system chooses one"
    )
    client_port: Port = Field(
        default=50052, description="port of the mooncake_client that owns the pool's memory; 0: the system chooses one"
    )
    logs_dir: PathName | None = Field(
        default=None, description="folder of the logs, one file per process; null: `stack-logs` in the current folder"
    )
    start_timeout_s: Seconds = Field(
        default=180.0, description="longest time until everything is ready, seconds; after it the start has failed"
    )
