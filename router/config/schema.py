"""The main configuration file: every key, its default, its unit and its meaning.

Field descriptions here are the documentation: the JSON Schema (`configs/warmroute.schema.json`), the reference in
`configs/README.md` and `warmroute check` all come from them. Unknown keys are refused (`read.py` says where and names
the nearest known one). Nothing here opens a file or a socket.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from router.config.sections.admission import AdmissionConfig
from router.config.sections.base import BaseUrl, PathName, Positive, Seconds, Section
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.kv_store import PoolConfig
from router.config.sections.listeners import AdminConfig, ClientsConfig, ListenConfig
from router.config.sections.local_stack import LocalStackConfig


class EventSource(Section):
    rank: int = Field(default=0, ge=0, description="data-parallel rank that publishes here")
    endpoint: str = Field(description="ZeroMQ PUB endpoint to connect to, like tcp://10.0.0.5:5557")
    replay_endpoint: str | None = Field(default=None, description="ZeroMQ ROUTER endpoint for replays")
    topic: str = Field(default="", description="topic prefix to subscribe to")


class TransferProtocol(Section):
    protocol: Literal["mooncake", "nixl"] = Field(
        description="the connector between them: MooncakeConnector or NixlConnector"
    )
    bootstrap_url: BaseUrl | None = Field(
        default=None, description="a prefill instance's Mooncake bootstrap server (VLLM_MOONCAKE_BOOTSTRAP_PORT, 8998)"
    )


class InstanceConfig(Section):
    url: BaseUrl = Field(description="base URL of the engine, without a path")
    name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$",
        description="short name for logs, metrics and headers; default: host:port",
    )
    api_key_env: str | None = Field(default=None, description="environment variable that holds the engine's API key")
    ca_file: PathName | None = Field(
        default=None, description="PEM file of the authority that signed the engine's certificate"
    )
    kv_events: Annotated[
        Annotated[Literal["auto", "off"], Tag("word")] | Annotated[list[EventSource], Tag("sources")],
        Discriminator(lambda given: "sources" if isinstance(given, list) else "word"),
    ] = Field(
        default="auto",
        description="auto: ask GET /kv_event_sources; off: approximate knowledge only; or the sources, by rank",
    )

    cpu_medium: Literal["pool", "host"] = Field(
        default="pool",
        description="what `cpu` in lower case means in its events: the shared pool (MooncakeStoreConnector) or its own "
        "host memory (LMCache)",
    )
    role: Literal["both", "prefill", "decode"] = Field(
        default="both", description="prefill: computes prompts for decode instances, never answers by itself"
    )
    transfer: TransferProtocol | None = Field(
        default=None, description="how KV gets from prefill to decode instances; both sides name the same protocol"
    )

    @property
    def id(self) -> str:
        """What the instance is called everywhere: its name, else host:port."""
        if self.name is not None:
            return self.name
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class EmbeddedFleetConfig(Section):
    engines: Positive = Field(default=4, description="how many simulated engines `warmroute fleet` starts")
    model: str = Field(default="warm-tiny", description="the name they serve")
    block_tokens: Positive = Field(default=16, description="tokens per cache block")
    blocks: Positive = Field(default=4096, description="cache blocks per engine and rank")
    prefill_tokens_per_s: float = Field(default=8000.0, gt=0, description="prompt tokens computed per second")
    decode_ms_per_token: float = Field(default=10.0, ge=0, description="time per answer token")


class HealthConfig(Section):
    interval_s: Seconds = Field(default=2.0, description="pause between probes of a ready instance")
    timeout_s: Seconds = Field(default=2.0, description="a probe without an answer within this time has failed")
    failures: Positive = Field(default=2, description="failed probes in a row before an instance is down")


class MetricsPollConfig(Section):
    busy_interval_s: Seconds = Field(
        default=0.25, description="pause between polls of an instance that has our requests"
    )
    idle_interval_s: Seconds = Field(default=10.0, description="pause between polls of an instance without")
    timeout_s: Seconds = Field(default=2.0, description="a poll without an answer within this time is dropped")


class BreakerConfig(Section):
    failures: Positive = Field(default=3, description="failures in a row (never 4xx) that open a target's breaker")
    open_s: Seconds = Field(
        default=5.0, description="time an open breaker lets nothing through, before one trial request"
    )


class TransferPrior(Section):
    base_ms: float = Field(ge=0, description="fixed cost of a load")
    us_per_token: float = Field(ge=0, description="cost per loaded token")


class DecodePrior(Section):
    """A model of 8 billion parameters in 16 bits on a GPU that reads 2 TB/s.

    A step reads the weights, 16 GB in 8 ms, with 2 ms of launching; of each context token 2 (K, V) x 32 layers x 8
    heads x 128 x 2 bytes = 131 KB in 65 ns; and for each request it samples and computes 16 GFLOP, 50 us at 312
    TFLOP/s.
    """

    base_ms: float = Field(default=10.0, ge=0, description="one step: the weights are read once")
    us_per_request: float = Field(default=50.0, ge=0, description="cost per request in the batch")
    ns_per_context_token: float = Field(default=60.0, ge=0, description="cost per token of all their contexts")


class SpeedPrior(Section):
    base_ms: float = Field(default=10.0, ge=0, description="fixed cost of a prefill")
    us_per_token: float = Field(default=100.0, gt=0, description="cost per uncached prompt token")
    ns_per_token_context: float = Field(
        default=2.0, ge=0, description="extra cost per thousand (new token x context token) pairs, in us"
    )
    cpu: TransferPrior = Field(
        default=TransferPrior(base_ms=1.0, us_per_token=5.0), description="loading from an instance's host memory"
    )
    disk: TransferPrior = Field(
        default=TransferPrior(base_ms=10.0, us_per_token=40.0), description="loading from an instance's disk"
    )
    pool: TransferPrior = Field(
        default=TransferPrior(base_ms=5.0, us_per_token=10.0), description="loading from the shared pool's memory"
    )
    pool_disk: TransferPrior = Field(
        default=TransferPrior(base_ms=20.0, us_per_token=50.0), description="loading from the shared pool's disks"
    )
    peer: TransferPrior = Field(
        default=TransferPrior(base_ms=10.0, us_per_token=10.0),
        description="handing a prompt's KV from a prefill instance to a decode instance",
    )
    decode: DecodePrior = DecodePrior()


class FleetConfig(Section):
    instances: list[InstanceConfig] = Field(default=[], description="engines, given here")
    file: PathName | None = Field(
        default=None, description="YAML file with a list of instances; reloaded when it changes"
    )
    file_poll_s: Seconds = Field(default=1.0, description="how often that file is looked at")
    embedded: EmbeddedFleetConfig | None = Field(default=None, description="simulated engines for `warmroute fleet`")
    health: HealthConfig = HealthConfig()
    metrics: MetricsPollConfig = MetricsPollConfig()
    breaker: BreakerConfig = BreakerConfig()
    speed_prior: SpeedPrior = SpeedPrior()


class TokenizerSource(Section):
    path: PathName | None = Field(
        default=None,
        description="local model directory with tokenizer.json (and a chat template); none: ask the engine",
    )
    chat_template: PathName | None = Field(
        default=None, description="file with the Jinja chat template, instead of the model's own"
    )
    template_kwargs: dict[str, Any] = Field(default={}, description="the engine's default chat template kwargs")


class TokensConfig(Section):
    budget_ms: Seconds = Field(default=500.0, description="longest wait for a prompt's token ids; after it: unknown")
    inline_chars: Positive = Field(default=8192, description="prompts up to this size are tokenised on the event loop")
    threads: Positive = Field(default=1, description="threads that tokenise longer prompts")
    memory_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=0,
        description="for all that is remembered of prompts (token ids, block keys, engine hashes) together; 0: nothing",
    )
    token_id_passthrough: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: engines that are seen to take them (vLLM >= 0.32) get a chat's token ids beside its text, "
        "and need not tokenise it again; off: never",
    )


class IndexConfig(Section):
    expected_ttl_s: Seconds = Field(default=5.0, description="how long a sent prompt counts as cached without an event")
    approximate_blocks: Positive = Field(
        default=200_000, description="remembered blocks per target without a trusted stream"
    )
    approximate_ttl_s: Seconds = Field(default=600.0, description="age at which such a block is forgotten")
    orphan_blocks: Positive = Field(default=10_000, description="blocks with an unknown parent kept per target")
    replay_timeout_s: Seconds = Field(default=5.0, description="a replay must be complete within this time")
    key_secret_env: str | None = Field(
        default=None,
        description="environment variable with the secret that seeds block keys; default: random per process, or the "
        "snapshot's",
    )
    snapshot_file: PathName | None = Field(
        default=None,
        description="where the index is saved, to be there at once after a restart; readable by its owner alone, since "
        "the secret of the block keys is in it; none: it is learned anew",
    )
    snapshot_every_s: Seconds = Field(default=60.0, description="pause between two snapshots; one more at the end")


class LimitsConfig(Section):
    body_bytes: Positive = Field(default=64 * 1024 * 1024, description="largest request body; larger: 413")
    body_budget_bytes: Positive = Field(
        default=1024 * 1024 * 1024, description="request bodies in memory at once, all together; beyond: 429"
    )
    concurrent: Positive = Field(default=2048, description="requests at once; beyond: 429 with Retry-After")
    connect_timeout_s: Seconds = Field(default=2.0, description="time to connect to an engine")
    first_byte_timeout_s: Seconds = Field(
        default=600.0, description="time from sending a request to its first answer byte"
    )
    idle_timeout_s: Seconds = Field(default=120.0, description="longest silence inside an answer")
    keepalive_s: Seconds = Field(
        default=4.0, description="how long an idle connection to an engine is kept (vLLM: 5 s)"
    )
    retry_ratio: float = Field(
        default=0.2, ge=0, le=1, description="retries per request allowed over time, whole router"
    )
    retry_burst: Positive = Field(default=10, description="retries allowed at once beyond that ratio")
    grace_s: Seconds = Field(default=30.0, description="time that streams have to finish after SIGTERM")
    responses_kept: Positive = Field(default=10_000, description="response ids whose target is remembered")


class ExtraEndpoint(Section):
    path: str = Field(pattern=r"^/", description="exact path to let through")
    method: Literal["GET", "POST"] = Field(default="POST", description="its method")


class EdgeConfig(Section):
    extra_endpoints: list[ExtraEndpoint] = Field(
        default=[], description="paths beyond the built-in list, routed by load"
    )
    strip_fields: list[str] = Field(
        default=["kv_transfer_params", "vllm_xargs"], description="top-level JSON fields that clients may not set"
    )
    strip_headers: list[str] = Field(
        default=["x-data-parallel-rank", "x-vllm-priority"],
        description="headers that clients may not set; x-warmroute-* never pass",
    )


class DecisionLogConfig(Section):
    folder: PathName = Field(description="where the files go; made if it is not there")
    rotate_bytes: Positive = Field(default=256 * 1024 * 1024, description="a file this large is closed and compressed")
    rotate_s: Seconds = Field(default=3600.0, description="a file this old is closed and compressed")
    keep_bytes: Positive = Field(
        default=10 * 1024 * 1024 * 1024, description="oldest files are deleted while all together are larger"
    )
    queue: Positive = Field(default=10_000, description="records that wait to be written; beyond: dropped and counted")
    fsync: Literal["never", "rotate", "second"] = Field(
        default="rotate",
        description="when files are forced to disk: never, when one is closed, or every second; a crash of the router "
        "alone loses at most a second in any case",
    )


class RecordsConfig(Section):
    keep: Positive = Field(default=10_000, description="decision records kept in memory")
    decision_log: DecisionLogConfig | None = Field(
        default=None, description="every decision as JSON lines, for `warmroute replay`"
    )


class PluginConfig(BaseModel):
    """A filter, scorer or picker by name; all other keys are its own parameters, checked when the policy is built."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str = Field(description="registered name, see scorers/README.md")


class WeightedPluginConfig(PluginConfig):
    weight: float = Field(default=1.0, ge=0, description="multiplies this scorer's cost")


class SchedulingProfileConfig(Section):
    """Filters, then weighted scorers, then a picker."""

    filters: list[PluginConfig] = Field(default=[], description="which candidates stay; health and model always apply")
    scorers: list[WeightedPluginConfig] = Field(min_length=1, description="costs that are weighted and added up")
    picker: PluginConfig = Field(default=PluginConfig(name="best"), description="how a row is taken from the costs")


class PolicyConfig(SchedulingProfileConfig):
    """A routing policy. Its own profile places whole requests, and either half of a pair that has none of its own."""

    prefill: SchedulingProfileConfig | None = Field(default=None, description="chooses among prefill instances")
    decode: SchedulingProfileConfig | None = Field(default=None, description="chooses among decode instances")
    prefill_from_tokens: int = Field(
        default=0,
        ge=0,
        description="a prompt of which the decode target must compute fewer tokens than this skips the prefill leg",
    )


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severity that is logged"
    )


class Config(Section):
    """The whole main file."""

    listen: ListenConfig = ListenConfig()
    workers: Positive = Field(
        default=1, description="processes that answer requests on the one port, as `--workers`; about one per core"
    )
    admin: AdminConfig = AdminConfig()
    clients: ClientsConfig = ClientsConfig()
    fleet: FleetConfig = FleetConfig()
    tokenizers: dict[str, TokenizerSource] = Field(
        default={}, description="by base model name as the engines serve it; a model without one asks the engine"
    )
    tokens: TokensConfig = TokensConfig()
    index: IndexConfig = IndexConfig()
    limits: LimitsConfig = LimitsConfig()
    admission: AdmissionConfig = AdmissionConfig()
    edge: EdgeConfig = EdgeConfig()
    usage: Literal["inject", "observe"] = Field(
        default="inject",
        description="inject: ask the engine for usage on every stream and hide what the client did not ask for",
    )
    records: RecordsConfig = RecordsConfig()
    pool: PoolConfig | None = Field(
        default=None, description="the Mooncake Store that the fleet shares; none: there is none"
    )
    stack: LocalStackConfig | None = Field(
        default=None, description="real engines and a real store, for `warmroute stack`"
    )
    policies_dir: PathName | None = Field(default=None, description="folder of policy files, each named by its stem")
    policies: dict[str, PolicyConfig] = Field(
        default={},
        description="policies given here, by name; one of the same name as a shipped policy takes its place",
    )
    active: str = Field(
        default="warm", description="policy that decides, by name; a shipped one (`warmroute policies`) needs no file"
    )
    experiment: ExperimentConfig | None = Field(
        default=None, description="policies that share the live requests, or look on"
    )
    watch: bool = Field(
        default=True,
        description="take changes of this file's `active`, `experiment` and `policies`, and of `policies_dir`, live",
    )
    seed: int | None = Field(default=None, description="seed of everything left to chance; default: random per process")
    log: LogConfig = LogConfig()
