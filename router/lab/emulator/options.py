"""The options of an emulated engine, and its faults, which can also be changed while it runs.

Both are plain values that travel as JSON: options as the one argument of a child process, faults in the body of
`POST /emulate/faults`. Unknown keys are rejected by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from router.config.sections.pool import HashAlgo
from router.kvcache.engine_hashes import DEFAULT_SEED

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class EngineFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults to inject. Random faults depend on the engine's seed."""

    drop_events: Probability = 0.0  # event messages never sent; a replay still has them
    duplicate_events: Probability = 0.0  # sent twice
    reorder_events: Probability = 0.0  # sent after the next one
    delay_events_ms: float = 0.0  # sent this much later, in order
    hide_removals: bool = False  # no events of removed and cleared blocks: the published state is wrong
    clock_offset_s: float = 0.0  # added to the time in event messages
    error_rate: Probability = 0.0  # of generating requests: 500
    refuse: bool = False  # generating requests: 503, as with a full queue
    unhealthy: bool = False  # GET /health: 503
    hang: tuple[str, ...] = ()  # path prefixes: no answer, as from a front end that is too busy
    freeze: bool = False  # accept connections and requests, answer none, step and publish nothing
    wedge: bool = False  # step and publish nothing, while everything else works: probes, metrics, accepting requests
    refuse_ids: bool = False  # chats that carry token ids: 400
    ignore_ids: bool = False  # token ids in chats are ignored, as by engines before 0.32
    renders: Literal["as_tokenized", "same_count", "other_count", "special_as_text"] = "as_tokenized"  # ids of
    # generating chats against /tokenize: same; other ids, as many or one more; special tokens in texts stay text
    tokenize_refuses_calls: bool = False  # POST /tokenize: 400 for chats with tool calls in their history
    refuses_chats: bool = False  # chats: 400, as by a model without a template
    asleep: bool = False  # GET /is_sleeping reports it, as in development mode; requests are still answered
    no_ids: bool = False  # answers carry no token ids, as from engines before 0.10.2
    silent_replays: bool = False  # replay requests are received and not answered
    slow: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # factor on every step's duration
    die_before_first_byte: Probability = 0.0  # connection cut after the request was read
    die_mid_stream: Probability = 0.0  # connection cut inside the answer
    die_after_bytes: int | None = None  # connection cut after so many bytes of an answer

    def merge_json(self, body: bytes) -> EngineFaults:
        """Return these faults with the fields of a JSON object replaced. Raises msgspec.ValidationError."""
        changes: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        return msgspec.convert(msgspec.to_builtins(self) | changes, EngineFaults)


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one emulated engine. A port of 0 is chosen by the system and announced."""

    name: str = "engine"
    host: str = "127.0.0.1"
    port: Port = 0
    version: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+\.")] = "0.32.0"  # of vLLM: reported, and emulated
    model: str = "warm-tiny"
    tokenizer: str | None = None  # model directory; default: the one that ships
    chat_template: str | None = None  # file, instead of the model's own
    exclude_tools: bool = False  # --exclude-tools-when-tool-choice-none
    images: bool = False  # a multimodal model
    transcribes: bool = False  # a speech model; other models have no audio endpoints
    prefix_caching: bool = True
    loras: tuple[str, ...] = ()  # adapter names, or name=path
    scale_out: bool = False  # --enable-scale-out: prompts can be rendered without generating
    runtime_loras: bool = False  # VLLM_ALLOW_RUNTIME_LORA_UPDATING: more can be loaded while it runs
    block_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    blocks: Annotated[int, msgspec.Meta(ge=1)] = 4096  # per rank
    sliding_windows: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()  # a hybrid model: windows of groups, in tokens
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(ge=0)] = 8000.0  # 0: prompts take no time
    decode_ms_per_token: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    answer_tokens: Annotated[int, msgspec.Meta(ge=1)] = 64  # length of an answer that is not cut by max_tokens
    pool_url: str | None = None  # the shared pool's master; `None`: no store connector
    pool_model: str | None = None  # the model's part of its keys; default: the last component of the model's name
    pool_timeout_s: float = 1.0  # after this the pool counts as empty, and nothing is saved
    load_tokens_per_s: Annotated[float, msgspec.Meta(ge=0)] = 100_000.0  # from pool or peer; 0: no time
    load_base_ms: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    hash_algo: HashAlgo = "sha256"
    hash_seed: str = DEFAULT_SEED  # PYTHONHASHSEED
    role: Literal["both", "prefill", "decode"] = "both"  # kv_both, kv_producer, kv_consumer
    transfer: Literal["mooncake", "nixl"] | None = None  # the connector between prefill and decode engines
    bootstrap_port: Port = 0  # of a prefill engine: Mooncake's bootstrap server, Nixl's side channel
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"  # applies to KV that a peer did not send
    side_channel_host: str | None = None  # VLLM_NIXL_SIDE_CHANNEL_HOST; default: `host` (vLLM: localhost)
    transfer_timeout_s: float = 2.0  # how long a decode engine waits for its peer (vLLM: 480 s)
    lease_s: float = 30.0  # blocks held for a peer are freed after this time (vLLM: Nixl 30 s, Mooncake 480 s)
    ranks: Annotated[int, msgspec.Meta(ge=1)] = 1
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1)] = 256
    max_queued: int | None = None  # waiting requests per rank beyond which new ones get 503
    max_model_len: int | None = None  # default: the size of the cache, at most 32768
    events: bool = True
    events_format: Literal["map", "array"] = "map"  # vLLM >= 0.24, or before
    replay_format: Literal["topic", "bare"] = "topic"  # vLLM >= 0.26, or before
    events_endpoint: str | None = None  # of rank 0: as in vLLM, bound if it has a `*`, else connected to
    events_port: Port = 0  # rank r publishes on events_port + r, as vLLM does
    replay_port: Port = 0
    replay: bool = True  # False: no `replay_endpoint`
    replay_steps: Annotated[int, msgspec.Meta(ge=1)] = 10_000  # batches stored for replays
    topic: str = ""
    cached_tokens: bool = True  # vLLM's --enable-prompt-tokens-details
    api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()  # of browsers; "*": all
    cert_file: str | None = None
    key_file: str | None = None
    seed: int = 0
    faults: EngineFaults = EngineFaults()
    parent_pid: int | None = None  # the parent process to die with

    @property
    def release(self) -> tuple[int, int]:
        """First two numbers of `version`."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def context_tokens(self) -> int:
        """Maximum length of prompt and answer together, in tokens."""
        return self.max_model_len or min(self.cache_tokens, 32768)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache of a rank holds; each group of a hybrid model takes its own blocks."""
        return self.blocks // (1 + len(self.sliding_windows)) * self.block_tokens

    @property
    def store_model(self) -> str:
        """The model's part of the pool's keys."""
        return self.pool_model or self.model.rstrip("/").rpartition("/")[2]

    def adapters(self) -> dict[str, str]:
        """Return the LoRA adapters by name, with the path that `/v1/models` reports."""
        pairs = (lora.partition("=") for lora in self.loras)
        return {name: path or f"/adapters/{name}" for name, _, path in pairs}
