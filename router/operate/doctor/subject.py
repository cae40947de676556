"""The subject of an examination: the facts about engines, routers, masters and the machine that the checks read.

The checks are pure functions of a `Subject`; `gather.py` and `probe.py` fill it. A fact that could not be gathered
is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from router.config.reader import ReadConfig
from router.config.schema import Config, InstanceConfig, PolicyConfig
from router.config.yaml_source import YamlDocument, YamlPath, format_path
from router.kvcache.events import BlocksStored
from router.operate.doctor.finding import Edit, Place
from router.operate.doctor.survey import EngineSurvey

Json = dict[str, Any]

KINDS = ("completions", "chat", "responses", "messages", "lora", "salt", "media")
"""Kinds of requests. Each finds its cached blocks in its own way, so each is probed by itself."""


class KindProbe(NamedTuple):
    """One prompt of one kind, sent twice to one rank. Numbers are in tokens; None: unknown."""

    kind: str
    error: str | None = None  # why the engine did not answer; the rest is empty then
    unknown: str | None = None  # why the router would not know the prompt's ids
    counted_tokens: int | None = None  # by the router's tokenizer
    prompt_tokens: int | None = None  # by the engine
    known_tokens: int = 0  # whole blocks of the part that the router knows: all up to the first media
    promised_tokens: int | None = None  # leading part of those that the events announced, by the router's keys
    cached_tokens: int | None = None  # delivered to the second request


class StreamProbe(NamedTuple):
    """The event stream of one rank, received while the engine computed prompts."""

    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str
    opened: bool  # a ZeroMQ publisher answered at `endpoint`
    batches: int  # messages received
    own: bool  # the stream announced the prompt that was sent to this rank
    found_at: str | None  # the stream that announced that prompt instead; None: no stream did
    malformed: int
    replay: Literal["answered", "silent"] | None  # None: not requested
    block_tokens: int | None  # in the announcement
    clock_ahead_s: float | None  # the engine's clock minus ours, as far as a batch shows; negative: behind
    firsts: tuple[BlocksStored, ...] = ()  # announced first blocks of prompts without adapter, salt and media


class EngineProbe(NamedTuple):
    """Results of real prompts at an engine."""

    streams: tuple[StreamProbe, ...]
    kinds: tuple[KindProbe, ...]
    transfer_host: str | None = None  # of a prefill engine with Nixl: the host where decode engines are to fetch
    transfer_params: bool | None = None  # whether its answer had transfer parameters; None: not queried
    unfinished: tuple[str, ...] = ()  # kinds that were not answered in time


class TokenizerProof(NamedTuple):
    """The ids of the configured tokenizer, or the engine's `/tokenize`, compared with those the engine uses."""

    compared: int
    differing: str | None = None  # the first text with other ids
    is_chat: bool = False  # `differing` is a chat: the template may be at fault
    engine_fails: str | None = None  # why nothing could be compared
    no_ids: str | None = None  # why no source has the ids of chats
    daily_date: str | None = None  # the present date, which the engine puts into all prompts; None: it does not


@dataclass
class ExaminedEngine:
    """One engine: its configuration and its answers."""

    config: InstanceConfig
    document: YamlDocument | None = None  # the document that lists it; None: only a router names it
    path: YamlPath = ()
    survey: EngineSurvey | None = None
    probe: EngineProbe | None = None
    proof: TokenizerProof | None = None
    bootstrap: str | None = None  # why its Mooncake bootstrap server is silent; "": it is not; None: not queried

    @property
    def name(self) -> str:
        """The engine's id."""
        return self.config.id

    @property
    def usable(self) -> EngineSurvey | None:
        """Facts that the engine reported. None: the engine cannot be used."""
        return None if self.survey is None or self.survey.error is not None else self.survey

    @property
    def model(self) -> str | None:
        """The name of the engine's base model. None: unknown."""
        return None if self.usable is None else self.usable.model

    @property
    def answered_kinds(self) -> tuple[KindProbe, ...]:
        """The kinds of requests that the engine answered."""
        return () if self.probe is None else tuple(kind for kind in self.probe.kinds if kind.error is None)

    def place(self, *key: str | int) -> Place | None:
        """Return the line of a key of this engine in the configuration."""
        return None if self.document is None else place_in(self.document, (*self.path, *key))


class MetricsAddress(NamedTuple):
    """The address of a router's metrics, on the host of its admin listener. `cert_file`: the certificate it serves
    them with, which is trusted; None: not known here.
    """

    port: int
    scheme: str = "http"
    cert_file: str | None = None


class MetricsFault(NamedTuple):
    """A fault because of which a router's metrics page cannot be read, and the change that mends it."""

    what: str
    change: str


class RouterAnswers(NamedTuple):
    """The answers of one router's admin API, as plain JSON. None: no answer to that query."""

    url: str
    error: str | None = None
    open_to_all: bool = False  # it answered without a token
    instances: list[Json] = []
    discovery: Mapping[str, str | None] = {}
    pool: Json | None = None
    policies: Json | None = None
    workers: list[Json] = []
    records: list[Json] = []
    metrics: str | None = None  # the page for Prometheus
    metrics_address: MetricsAddress | None = None  # None: not known
    metrics_fault: MetricsFault | None = None  # why there is no page
    later_metrics: str | None = None  # the same, some seconds later
    replicas: list[Json] = []  # the other routers in front of the same engines


class MasterAnswers(NamedTuple):
    """One Mooncake master: whether it leads, or why that is unknown."""

    url: str
    leads: bool
    trouble: str | None


class HostFacts(NamedTuple):
    """Limits of this machine and process. None: unknown on this machine."""

    open_files: int | None  # hard limit; the router raises its soft one to it
    somaxconn: int | None
    local_ports: int | None
    memory_bytes: int | None  # of the cgroup
    cores: int | None


UNKNOWN_HOST = HostFacts(None, None, None, None, None)


@dataclass
class Subject:
    """Everything that was gathered."""

    read: ReadConfig | None = None  # None: only running routers are examined
    document: YamlDocument | None = None
    text: str = ""  # of the main file
    engines: list[ExaminedEngine] = field(default_factory=list)
    routers: list[RouterAnswers] = field(default_factory=list)
    masters: list[MasterAnswers] = field(default_factory=list)
    pool_keys: tuple[str, ...] | None = None  # listed by the leading master; None: too many, or not queried
    host: HostFacts = UNKNOWN_HOST
    passive: bool = False
    unfinished: list[str] = field(default_factory=list)  # names of the queries without an answer in time

    @property
    def config(self) -> Config | None:
        """The main configuration."""
        return None if self.read is None else self.read.config

    @property
    def policies(self) -> Mapping[str, PolicyConfig]:
        """All policies of the configuration, by name."""
        return {} if self.read is None else self.read.policies

    @property
    def usable(self) -> list[ExaminedEngine]:
        """The engines that answered."""
        return [engine for engine in self.engines if engine.usable is not None]

    def place(self, *path: str | int) -> Place | None:
        """Return the line of a key in the main file, or of its innermost existing parent."""
        return None if self.document is None else place_in(self.document, path)

    def edit(self, engine: ExaminedEngine, value: Any, *key: str | int) -> Edit | None:
        """Return the edit of an engine's key. None if the main file does not list the engine."""
        return Edit((*engine.path, *key), value) if engine.document is self.document is not None else None

    def by_model(self) -> dict[str, list[ExaminedEngine]]:
        """Return the engines that answered, grouped by base model."""
        groups: dict[str, list[ExaminedEngine]] = {}
        for engine in self.usable:
            if engine.model is not None:
                groups.setdefault(engine.model, []).append(engine)
        return groups


def place_in(document: YamlDocument, path: Sequence[str | int]) -> Place:
    """Return the line of a path in a document, or of its innermost existing parent."""
    return Place(document.name, document.line(tuple(path)), format_path(tuple(path)))


def list_names(engines: Sequence[ExaminedEngine]) -> tuple[str, ...]:
    """Return the ids of engines."""
    return tuple(engine.name for engine in engines)
