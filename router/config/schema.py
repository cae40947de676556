"""The main configuration file: every key with its default, unit and meaning.

The docstrings of the fields are the documentation: the JSON Schema (`configs/warmroute.schema.json`), the reference
in `docs/reference/configuration.md` and the messages of `warmroute check` are generated from them. Unknown keys are
refused (`reader.py`). Nothing here opens a file or a socket.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from router.config.sections.adapters import MAX_ADAPTERS, AdapterConfig, AdapterLoadingConfig
from router.config.sections.admission import AdmissionConfig
from router.config.sections.autoscaling import KedaConfig, WakeConfig
from router.config.sections.base import (
    BaseUrl,
    PathName,
    PluginConfig,
    Positive,
    Seconds,
    Section,
    Shape,
    VariableName,
    ZmqEndpoint,
    split_base_url,
    url_host,
)
from router.config.sections.clients import ClientsConfig
from router.config.sections.discovery import DnsConfig, KubernetesConfig
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.listeners import (
    AdminConfig,
    EdgeConfig,
    LimitsConfig,
    ListenConfig,
    MetricsConfig,
    PickerConfig,
)
from router.config.sections.local_stack import EmbeddedFleetConfig, LocalStackConfig
from router.config.sections.models import MAX_ALIASES, AliasConfig, find_chains
from router.config.sections.pool import PoolConfig
from router.config.sections.preload import PreloadConfig
from router.config.sections.replicas import ReplicasConfig
from router.config.sections.tracing import TracingConfig

MAX_PLUGINS = 64
"""Limit of filters and of scorers in one profile: each costs some microseconds per decision, the shipped policies
have up to three.
"""
FALLBACK_POLICY = "fallback"
"""The name of the policy that decides when another fails; no other may have it."""
MAX_POLICIES = 256
"""Limit of policies: each is built, described and compared with the others on every change."""


INSTANCE_NAME = Shape(
    r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", "letters, digits, dots, colons, dashes and underscores, a letter or digit first"
)


class EventSource(Section):
    rank: int = Field(default=0, ge=0)
    """data-parallel rank whose events are published here"""
    endpoint: ZmqEndpoint
    """ZeroMQ PUB endpoint to connect to, such as tcp://10.0.0.5:5557"""
    replay_endpoint: ZmqEndpoint | None = None
    """ZeroMQ ROUTER endpoint for replays of missed batches; null: no replay, a gap makes the target's index be
    forgotten"""
    topic: str = ""
    """ZeroMQ topic prefix to subscribe to; empty: all topics"""


class TransferProtocol(Section):
    protocol: Literal["mooncake", "nixl"]
    """KV connector of the engines: mooncake is MooncakeConnector, nixl is NixlConnector"""
    bootstrap_url: BaseUrl | None = None
    """base URL of a prefill instance's Mooncake bootstrap server (VLLM_MOONCAKE_BOOTSTRAP_PORT, 8998); required for
    role prefill with protocol mooncake, else null"""


class InstanceConfig(Section):
    url: BaseUrl
    """base URL of the engine, without a path"""
    name: Annotated[str, INSTANCE_NAME] | None = None
    """id of the instance in logs, metrics and headers; null: host:port of `url`"""
    api_key_env: VariableName | None = None
    """environment variable that holds the engine's API key; null: no key is sent"""
    ca_file: PathName | None = None
    """PEM file of the CA that signed the engine's certificate; null: the system's CAs"""
    kv_events: Annotated[
        Annotated[Literal["auto", "off"], Tag("mode")] | Annotated[list[EventSource], Tag("sources")],
        Discriminator(lambda value: "sources" if isinstance(value, list) else "mode"),
    ] = "auto"
    """where the KV events come from; auto: query the engine (GET /kv_event_sources); off: no events, the index is
    estimated from routed prompts; or a list of sources by rank, such as [{endpoint: "tcp://10.0.0.5:5557"}]"""
    cpu_medium: Literal["pool", "host"] = "pool"
    """meaning of the medium `cpu` (lower case) in this instance's events; pool: the shared pool
    (MooncakeStoreConnector); host: its own host memory (LMCache)"""
    role: Literal["both", "prefill", "decode"] = "both"
    """prefill: computes prompts for decode instances and never answers a client; decode: may take its KV from a
    prefill instance; both: does everything itself
    """
    transfer: TransferProtocol | None = None
    """how KV moves from prefill to decode instances; required for roles prefill and decode, both sides must name
    the same protocol; null: no transfer
    """
    revision: str | None = None
    """version of what is deployed: prefill and decode instances are paired only within one; null: unknown, paired
    with those whose revision is unknown as well
    """

    @property
    def id(self) -> str:
        """The instance's `name`, else host:port of its `url`."""
        if self.name is not None:
            return self.name
        host, port = split_base_url(self.url)
        return f"{url_host(host)}:{port}"


class HealthConfig(Section):
    interval_s: Seconds = 2.0
    """pause between two probes of a ready instance, seconds"""
    timeout_s: Seconds = 2.0
    """a probe without an answer within this time has failed, seconds"""
    failures: Positive = 2
    """consecutive failed probes after which an instance is down"""


class MetricsPollConfig(Section):
    busy_interval_s: Seconds = 0.25
    """pause between two polls of an instance with requests of this router in flight, seconds"""
    idle_interval_s: Seconds = 10.0
    """pause between two polls of an instance without, seconds"""
    timeout_s: Seconds = 2.0
    """a poll without an answer within this time is dropped, seconds"""


class BreakerConfig(Section):
    failures: Positive = 3
    """consecutive failures (no connection, a broken answer, 500, 502, 504) that open the circuit breaker of a
    target; those of one client do not while another client is served there
    """
    open_s: Seconds = 5.0
    """how long an open breaker blocks its target before one trial request, seconds"""


class TransferPrior(Section):
    base_ms: float = Field(ge=0)
    """fixed cost per load, milliseconds"""
    us_per_token: float = Field(ge=0)
    """cost per loaded token, microseconds"""


class DecodePrior(Section):
    """Decode cost of a model of 8 billion parameters in 16 bits on a GPU that reads 2 TB/s, used until measured.

    A step reads the weights, 16 GB in 8 ms, plus 2 ms of kernel launches; for each context token it reads 2 (K, V)
    x 32 layers x 8 heads x 128 x 2 bytes = 131 KB in 65 ns; for each request it samples and computes 16 GFLOP, 50
    us at 312 TFLOP/s.
    """

    base_ms: float = Field(default=10.0, ge=0)
    """fixed cost of one decode step (the weights are read once), milliseconds"""
    us_per_request: float = Field(default=50.0, ge=0)
    """cost per request in the batch, microseconds"""
    ns_per_context_token: float = Field(default=60.0, ge=0)
    """cost per context token of all requests in the batch, nanoseconds"""


class SpeedPrior(Section):
    base_ms: float = Field(default=10.0, ge=0)
    """fixed cost of a prefill, milliseconds"""
    us_per_token: float = Field(default=100.0, gt=0)
    """cost per uncached prompt token, microseconds"""
    ns_per_token_context: float = Field(default=2.0, ge=0)
    """attention cost per pair of a new token and a token before it, nanoseconds"""
    cpu: TransferPrior = TransferPrior(base_ms=1.0, us_per_token=5.0)
    """cost of loading KV from an instance's host memory, until measured"""
    disk: TransferPrior = TransferPrior(base_ms=10.0, us_per_token=40.0)
    """cost of loading KV from an instance's disk, until measured"""
    pool: TransferPrior = TransferPrior(base_ms=5.0, us_per_token=10.0)
    """cost of loading KV from the shared pool's memory, until measured"""
    pool_disk: TransferPrior = TransferPrior(base_ms=20.0, us_per_token=50.0)
    """cost of loading KV from the shared pool's disks, until measured"""
    peer: TransferPrior = TransferPrior(base_ms=10.0, us_per_token=10.0)
    """cost of moving a prompt's KV from a prefill to a decode instance, until measured"""
    decode: DecodePrior = DecodePrior()


class FleetConfig(Section):
    instances: list[InstanceConfig] = []
    """engines, listed here"""
    file: PathName | None = None
    """YAML file with a list of instances, reloaded when it changes; null: none"""
    file_poll_s: Seconds = 1.0
    """interval at which `file` is checked for changes, seconds"""
    dns: DnsConfig | None = None
    """engines behind a host name or SRV records; null: none"""
    kubernetes: KubernetesConfig | None = None
    """engines in the pods of a Kubernetes namespace; null: none"""
    embedded: EmbeddedFleetConfig | None = None
    """simulated engines for `warmroute fleet`; null: none"""
    health: HealthConfig = HealthConfig()
    metrics: MetricsPollConfig = MetricsPollConfig()
    breaker: BreakerConfig = BreakerConfig()
    speed_prior: SpeedPrior = SpeedPrior()

    @property
    def has_sources(self) -> bool:
        """Any source of engines that are not started by the router."""
        return bool(self.instances) or any((self.file, self.dns, self.kubernetes))


class TokenizerSource(Section):
    path: PathName | None = None
    """local model folder with tokenizer.json and a chat template; null: query the engine's tokenizer"""
    chat_template: PathName | None = None
    """file with the Jinja chat template; null: the model's own"""
    template_kwargs: dict[str, Any] = {}
    """default chat template kwargs, as configured on the engine"""
    renderer: Literal["auto", "jinja", "harmony", "mistral", "deepseek_v32", "deepseek_v4", "deepseek_v41"] = "auto"
    """how the engine renders chats; auto: chosen from the model folder as vLLM does, which `--tokenizer-mode` overrides
    there"""


class TokensConfig(Section):
    budget_ms: Seconds = 500.0
    """longest wait for a prompt's token ids, milliseconds; after it they count as unknown and the request is placed
    without"""
    inline_chars: int = Field(default=8192, ge=0)
    """prompts of up to this many characters are tokenized on the event loop, longer ones in threads; 0: all in
    threads"""
    threads: Positive = 1
    """threads that tokenize longer prompts"""
    memory_bytes: int = Field(default=512 * 1024 * 1024, ge=0)
    """memory for everything remembered of prompts (token ids, block keys, engine hashes) together, bytes; 0:
    nothing is remembered
    """
    token_id_passthrough: Literal["auto", "off"] = "auto"
    """auto: send a chat's token ids beside its text to engines that were seen to use them (vLLM >= 0.32), which
    saves them tokenizing it again; off: never
    """


class IndexConfig(Section):
    expected_ttl_s: Seconds = 5.0
    """how long a routed prompt counts as cached before an event confirms it, seconds"""
    approximate_blocks: Positive = 200_000
    """blocks remembered per target that has no trusted event stream"""
    approximate_ttl_s: Seconds = 600.0
    """age at which such a block is forgotten, seconds"""
    orphan_blocks: int = Field(default=10_000, ge=0)
    """blocks with an unknown parent that are kept per target; 0: none"""
    instance_bytes: Positive = 512 * 1024 * 1024
    """memory for what the events of one instance announce, all ranks together, bytes (50 to 200 per block); an
    engine that announces more is served as one without events
    """
    replay_timeout_s: Seconds = 5.0
    """longest wait for a complete replay of missed events, seconds"""
    key_secret_env: VariableName | None = None
    """environment variable with the secret that seeds block keys; null: that of the snapshot, else random"""
    snapshot_file: PathName | None = None
    """file that the index is saved to and restored from at start; it holds the secret of the block keys, so only
    its owner can read it; null: no snapshot, the index is rebuilt from events
    """
    snapshot_every_s: Seconds = 60.0
    """interval between two snapshots, seconds; one more is written at shutdown"""


class DecisionLogConfig(Section):
    folder: PathName
    """folder of the log files; created if missing"""
    rotate_bytes: Positive = 256 * 1024 * 1024
    """size at which a file is closed and compressed, bytes"""
    rotate_s: Seconds = 3600.0
    """age at which a file is closed and compressed, seconds"""
    keep_bytes: Positive = 10 * 1024 * 1024 * 1024
    """total size above which the oldest files are deleted, bytes"""
    queue: Positive = 10_000
    """records that may wait to be written; beyond it records are dropped and counted"""
    fsync: Literal["never", "rotate", "second"] = "rotate"
    """when files are forced to disk; never; rotate: when a file is closed; second: every second. A crash of the
    router alone loses at most one second in any case
    """


class RecordsConfig(Section):
    keep: int = Field(default=10_000, ge=0)
    """most recent decision records kept in memory; 0: none, so none can be found, and dry runs have nothing to
    decide again
    """
    decision_log: DecisionLogConfig | None = None
    """write every decision as JSON lines, for `warmroute replay`; null: no decision log"""


class WeightedPluginConfig(PluginConfig):
    weight: float = Field(default=1.0, ge=0)
    """factor on this scorer's cost"""


class SchedulingProfileConfig(Section):
    """Filters, then weighted scorers, then a picker: how one target is chosen."""

    filters: list[PluginConfig] = Field(default=[], max_length=MAX_PLUGINS)
    """filters that candidates must pass, in order; health and model are always checked"""
    scorers: list[WeightedPluginConfig] = Field(min_length=1, max_length=MAX_PLUGINS)
    """scorers whose weighted costs are added up; the lowest sum is best"""
    picker: PluginConfig = PluginConfig(name="best")
    """picker that selects a candidate from the costs"""


class PolicyConfig(SchedulingProfileConfig):
    """A routing policy. Its own profile places whole requests, and each half of a pair without a profile of its
    own.
    """

    prefill: SchedulingProfileConfig | None = None
    """profile that chooses among prefill instances; null: the policy's own profile"""
    decode: SchedulingProfileConfig | None = None
    """profile that chooses among decode instances; null: the policy's own profile"""
    prefill_from_tokens: int = Field(default=0, ge=0)
    """fewest tokens that the decode target would have to compute for the prefill to go to a prefill instance"""
    continuation: bool = True
    """let another engine carry a streamed answer on when its own fails in the middle"""


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """lowest severity that is logged"""
    format: Literal["text", "json"] = "text"
    """text: a line per message; json: a JSON object per line, with time, level, logger, message and what the
    message is about as keys
    """
    access: bool = False
    """log a line for every request when it has ended, whatever `level` is: status, target, times, tokens, and the
    ids of its record and trace
    """


class Config(Section):
    """The main configuration file."""

    listen: ListenConfig = ListenConfig()
    picker: PickerConfig | None = None
    """answer gateways as their endpoint picker, beside `listen`; null: only `warmroute picker` does, with the
    defaults of this section
    """
    keda: KedaConfig | None = None
    """answer KEDA as its external scaler; null: do not"""
    workers: Positive = 1
    """processes that answer requests on the public port and those of `picker`, as `--workers`; about one per core.
    From 2 on a further process supervises them"""
    replicas: ReplicasConfig | None = None
    """other routers in front of the same engines, which share load, sessions and drains with this one; null: this
    router is alone"""
    admin: AdminConfig = AdminConfig()
    metrics: MetricsConfig = MetricsConfig()
    clients: ClientsConfig = ClientsConfig()
    fleet: FleetConfig = FleetConfig()
    models: dict[str, AliasConfig] = Field(default={}, max_length=MAX_ALIASES)
    """other names for models, by the name that clients use; one that an engine serves itself is replaced"""
    adapters: dict[str, AdapterConfig] = Field(default={}, max_length=MAX_ADAPTERS)
    """LoRA adapters by name that are loaded when a request for one comes that no instance has; empty: none are"""
    adapter_loading: AdapterLoadingConfig = AdapterLoadingConfig()
    tokenizers: dict[str, TokenizerSource] = {}
    """tokenizers by base model name as the engines serve it; a model without an entry uses the engine's
    tokenizer
    """
    tokens: TokensConfig = TokensConfig()
    index: IndexConfig = IndexConfig()
    limits: LimitsConfig = LimitsConfig()
    admission: AdmissionConfig = AdmissionConfig()
    preload: PreloadConfig = PreloadConfig()
    wake: WakeConfig | None = None
    """let requests for a model without an instance wait while one is started; null: they are refused"""
    edge: EdgeConfig = EdgeConfig()
    usage: Literal["inject", "observe"] = "inject"
    """inject: request token usage on every stream and hide it from clients that did not; observe: use what the
    client requested
    """
    records: RecordsConfig = RecordsConfig()
    tracing: TracingConfig | None = None
    """export OpenTelemetry spans of requests; null: no tracing"""
    pool: PoolConfig | None = None
    """the Mooncake Store that the fleet shares; null: no shared pool"""
    stack: LocalStackConfig | None = None
    """real vLLM engines and a real store, for `warmroute stack`; null: none"""
    policies_dir: PathName | None = None
    """folder of policy files, each named by its stem; null: only `policies`"""
    policies: dict[str, PolicyConfig] = Field(default={}, max_length=MAX_POLICIES)
    """policies given inline, by name; one with the name of a shipped policy replaces it"""
    active: str = "warm"
    """name of the policy that decides; a shipped one (`warmroute policies`) needs no file"""
    experiment: ExperimentConfig | None = None
    """policies that share the live requests, and policies that run in shadow; null: no experiment"""
    watch: bool = True
    """apply changes of `active`, `experiment` and `policies` in this file, and of `policies_dir`, without a
    restart
    """
    seed: int | None = None
    """seed of every random choice; null: random per process. Replicas with the same seed draw differently"""
    log: LogConfig = LogConfig()

    @property
    def adapter_bases(self) -> dict[str, str]:
        """The base model of each adapter that can be loaded."""
        return {name: adapter.base for name, adapter in self.adapters.items()}

    @model_validator(mode="after")
    def _check_models(self) -> Config:
        if chain := next(find_chains(self.models), None):
            raise ValueError(chain)
        return self
