"""The main configuration file: every key, its default, its unit and its meaning.

Field descriptions here are the documentation: the JSON Schema (`configs/warmroute.schema.json`), the reference in
`configs/README.md` and `warmroute check` all come from them. Unknown keys are refused (`read.py` says where and names
the nearest known one). Nothing here opens a file or a socket.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(Section):
    cert_file: str = Field(description="PEM certificate chain of the listener")
    key_file: str = Field(description="PEM private key of the listener")


class Listen(Section):
    host: str = Field("0.0.0.0", description="address of the public listener")
    port: Port = Field(8000, description="port of the public listener; 0 lets the system choose")
    tls: Tls | None = Field(None, description="serve https instead of http")
    header_timeout_s: Seconds = Field(10.0, description="a request's head must be complete within this time")
    body_idle_timeout_s: Seconds = Field(30.0, description="longest pause between two pieces of a request's body")
    header_bytes: Positive = Field(65536, description="largest request head (request line and headers)")


class AdminToken(Section):
    name: str = Field(description="who this is: shown in logs")
    hash: str = Field(description="sha256 of the token in hex (`printf %s TOKEN | sha256sum`)")
    rights: list[Literal["read", "write"]] = Field(["read"], description="read: look; write: drain and change")


class Admin(Section):
    host: str = Field("127.0.0.1", description="address of the admin listener, never the public one")
    port: Port = Field(8001, description="port of the admin listener; 0 lets the system choose")
    tokens: list[AdminToken] = Field([], description="bearer tokens; none: open, allowed only on a loopback host")


class Clients(Section):
    keys_file: str | None = Field(
        None, description="file with one sha256 of a client API key (hex) and a name per line; none: no key is asked"
    )


class EventSource(Section):
    rank: int = Field(0, ge=0, description="data-parallel rank that publishes here")
    endpoint: str = Field(description="ZeroMQ PUB endpoint to connect to, like tcp://10.0.0.5:5557")
    replay_endpoint: str | None = Field(None, description="ZeroMQ ROUTER endpoint for replays")
    topic: str = Field("", description="topic prefix to subscribe to")


class Instance(Section):
    url: str = Field(pattern=r"^https?://[^/?#]+$", description="base URL of the engine, without a path")
    name: str | None = Field(None, description="short name for logs, metrics and headers; default: host:port")
    api_key_env: str | None = Field(None, description="environment variable that holds the engine's API key")
    ca_file: str | None = Field(None, description="PEM file of the authority that signed the engine's certificate")
    kv_events: Literal["auto", "off"] | list[EventSource] = Field(
        "auto", description="auto: ask GET /kv_event_sources; off: approximate knowledge only; or the sources, by rank"
    )


class Embedded(Section):
    engines: Positive = Field(4, description="how many simulated engines `warmroute fleet` starts")
    model: str = Field("warm-tiny", description="the name they serve")
    block_tokens: Positive = Field(16, description="tokens per cache block")
    blocks: Positive = Field(4096, description="cache blocks per engine and rank")
    prefill_tokens_per_s: float = Field(8000.0, gt=0, description="prompt tokens computed per second")
    decode_ms_per_token: float = Field(10.0, ge=0, description="time per answer token")


class Health(Section):
    interval_s: Seconds = Field(2.0, description="pause between probes of a ready instance")
    timeout_s: Seconds = Field(2.0, description="a probe without an answer within this time has failed")
    failures: Positive = Field(2, description="failed probes in a row before an instance is down")


class MetricsPoll(Section):
    busy_interval_s: Seconds = Field(0.25, description="pause between polls of an instance that has our requests")
    idle_interval_s: Seconds = Field(10.0, description="pause between polls of an instance without")
    timeout_s: Seconds = Field(2.0, description="a poll without an answer within this time is dropped")


class Breaker(Section):
    failures: Positive = Field(3, description="failures in a row (never 4xx) that open a target's breaker")
    open_s: Seconds = Field(5.0, description="time an open breaker lets nothing through, before one trial request")


class SpeedPrior(Section):
    base_ms: float = Field(10.0, ge=0, description="fixed cost of a prefill")
    us_per_token: float = Field(100.0, gt=0, description="cost per uncached prompt token")
    ns_per_token_context: float = Field(
        2.0, ge=0, description="extra cost per thousand (new token x context token) pairs, in us"
    )


class Fleet(Section):
    instances: list[Instance] = Field([], description="engines, given here")
    file: str | None = Field(None, description="YAML file with a list of instances; reloaded when it changes")
    file_poll_s: Seconds = Field(1.0, description="how often that file is looked at")
    embedded: Embedded | None = Field(None, description="simulated engines for `warmroute fleet`")
    health: Health = Health()
    metrics: MetricsPoll = MetricsPoll()
    breaker: Breaker = Breaker()
    speed_prior: SpeedPrior = SpeedPrior()


class TokenizerSource(Section):
    path: str | None = Field(
        None, description="local model directory with tokenizer.json (and a chat template); none: ask the engine"
    )
    chat_template: str | None = Field(None, description="file with the Jinja chat template, instead of the model's own")
    template_kwargs: dict[str, Any] = Field({}, description="the engine's default chat template kwargs")


class Tokens(Section):
    budget_ms: Seconds = Field(500.0, description="longest wait for a prompt's token ids; after it: unknown")
    inline_chars: Positive = Field(4096, description="prompts up to this size are tokenised on the event loop")
    threads: Positive = Field(1, description="threads that tokenise longer prompts")


class Index(Section):
    expected_ttl_s: Seconds = Field(5.0, description="how long a sent prompt counts as cached without an event")
    approximate_blocks: Positive = Field(200_000, description="remembered blocks per target without a trusted stream")
    approximate_ttl_s: Seconds = Field(600.0, description="age at which such a block is forgotten")
    orphan_blocks: Positive = Field(10_000, description="blocks with an unknown parent kept per target")
    replay_timeout_s: Seconds = Field(5.0, description="a replay must be complete within this time")
    key_secret_env: str | None = Field(
        None, description="environment variable with the secret that seeds block keys; default: random per process"
    )


class Limits(Section):
    body_bytes: Positive = Field(64 * 1024 * 1024, description="largest request body; larger: 413")
    body_budget_bytes: Positive = Field(
        1024 * 1024 * 1024, description="request bodies in memory at once, all together; beyond: 429"
    )
    concurrent: Positive = Field(2048, description="requests at once; beyond: 429 with Retry-After")
    connect_timeout_s: Seconds = Field(2.0, description="time to connect to an engine")
    first_byte_timeout_s: Seconds = Field(600.0, description="time from sending a request to its first answer byte")
    idle_timeout_s: Seconds = Field(120.0, description="longest silence inside an answer")
    keepalive_s: Seconds = Field(4.0, description="how long an idle connection to an engine is kept (vLLM: 5 s)")
    retry_ratio: float = Field(0.2, ge=0, le=1, description="retries per request allowed over time, whole router")
    retry_burst: Positive = Field(10, description="retries allowed at once beyond that ratio")
    grace_s: Seconds = Field(30.0, description="time that streams have to finish after SIGTERM")
    responses_kept: Positive = Field(10_000, description="response ids whose target is remembered")


class ExtraEndpoint(Section):
    path: str = Field(pattern=r"^/", description="exact path to let through")
    method: Literal["GET", "POST"] = Field("POST", description="its method")


class Edge(Section):
    extra_endpoints: list[ExtraEndpoint] = Field([], description="paths beyond the built-in list, routed by load")
    strip_fields: list[str] = Field(
        ["kv_transfer_params", "vllm_xargs"], description="top-level JSON fields that clients may not set"
    )
    strip_headers: list[str] = Field(
        ["x-data-parallel-rank", "x-vllm-priority"],
        description="headers that clients may not set; x-warmroute-* never pass",
    )


class Records(Section):
    keep: Positive = Field(10_000, description="decision records kept in memory")


class Plugin(BaseModel):
    """A filter, scorer or picker by name; all other keys are its own parameters, checked when the policy is built."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="registered name, see scorers/README.md")


class WeightedPlugin(Plugin):
    weight: float = Field(1.0, ge=0, description="multiplies this scorer's cost")


class Policy(Section):
    """A routing policy: filters, then weighted scorers, then a picker."""

    filters: list[Plugin] = Field([], description="which candidates stay; health and model always apply")
    scorers: list[WeightedPlugin] = Field(min_length=1, description="costs that are weighted and added up")
    picker: Plugin = Field(Plugin(name="best"), description="how a row is taken from the costs")


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severity that is logged")


class Config(Section):
    """The whole main file."""

    listen: Listen = Listen()
    admin: Admin = Admin()
    clients: Clients = Clients()
    fleet: Fleet = Fleet()
    tokenizers: dict[str, TokenizerSource] = Field(
        {}, description="by base model name as the engines serve it; a model without one asks the engine"
    )
    tokens: Tokens = Tokens()
    index: Index = Index()
    limits: Limits = Limits()
    edge: Edge = Edge()
    usage: Literal["inject", "observe"] = Field(
        "inject", description="inject: ask the engine for usage on every stream and hide what the client did not ask for"
    )
    records: Records = Records()
    policies_dir: str | None = Field(None, description="folder of policy files, each named by its stem")
    policies: dict[str, Policy] = Field({}, description="policies given here, by name")
    active: str = Field("default", description="name of the policy that decides")
    seed: int | None = Field(None, description="seed of everything left to chance; default: random per process")
    log: Log = Log()

    @model_validator(mode="after")
    def _admin_open_only_on_loopback(self) -> Config:
        if not self.admin.tokens and self.admin.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError("admin.tokens: needed when admin.host is not a loopback address")
        return self
