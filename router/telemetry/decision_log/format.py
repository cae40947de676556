"""What the lines of a decision log file say: the format, as types that msgspec reads and writes.

    {"file":   {version, started_at_wall_s, run, warmroute, fields}}   the first line of every file
    {"policy": {name, digest, spec}}      before the first record that it decided: every file stands alone
    {"record": {...}}                     a request, once it is over (`LoggedRecord`)

Views are arrays in the order of the contract's fields, which `fields` names; floats have their shortest exact form. A
view of a large fleet has rows for those who could win, and counts the `others` (`scheduling/policy/pruning.py`).
Rows and not columns: these take a sixth less, but msgspec reads and writes rows by itself, twice as fast, and what did
not change since the record before costs next to nothing in a row, once compressed. A record is also a request of a
Mooncake trace (`timestamp` in ms, `input_length`, `output_length`, `hash_ids` per 512 tokens), as in
https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release, but for a last block that is not full.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.config import schema
from router.scheduling.policy.decision import Part
from router.scheduling.policy.record import Stages
from scorers.contract import Ask, Decode, Load, Overlap, PoolHit, Row, Speed, Transfer, View

VERSION = 2
OLDEST_READ = 1
"""Version 1 called the stage `admission_ms` by another name (`OLD_NAMES`)."""

OLD_NAMES = ((b'"door_ms"', b'"admission_ms"'),)
UNPLACED = "unplaced"
CONTRACT = (View, Row, Overlap, Load, Speed, Transfer, Decode, PoolHit, Ask)
FIELDS = {kind.__name__: list(kind._fields) for kind in CONTRACT}


class FileHead(msgspec.Struct, frozen=True):
    """What a file says of itself."""

    version: int
    started_at_wall_s: float
    run: str  # begins the ids of the process's records
    warmroute: str  # its version
    fields: dict[str, list[str]]


class LoggedPolicy(msgspec.Struct, frozen=True):
    """A policy that records of the file name."""

    name: str
    digest: str
    spec: dict[str, Any] | None  # as in a policy file; None: it was built by hand

    @property
    def policy(self) -> schema.PolicyConfig | None:
        """Raises pydantic's ValidationError where a later version wrote what this one does not know."""
        return None if self.spec is None else schema.PolicyConfig.model_validate(self.spec)


class LoggedChoice(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One decision, with all that it went by, and how it went."""

    view: View
    part: Part
    policy: str  # that really decided: the fallback where the record's failed, a policy's half for half of a pair
    target: str
    end: str  # a word of `Attempt.end`, or of `Leg.end`
    predicted_tokens: int | None = None
    expected_tokens: int | None = None
    pool_tokens: int | None = None
    duration_ms: float | None = None  # of a prefill half
    cached_tokens: int | None = None  # delivered there
    prefill: LoggedChoice | None = None  # the half that came before


class LoggedShadow(msgspec.Struct, frozen=True, gc=False):
    """What a shadow would have chosen: see `ShadowChoice` and `Difference`."""

    policy: str
    target: str
    ttft_ms: float
    overlap_tokens: int | None


class LoggedRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A record as the decision log keeps it. Times of its outcome are good to the microsecond."""

    id: str
    number: int
    timestamp: int  # ms since the epoch
    input_length: int | None  # tokens: the engine's word, else our count
    output_length: int | None
    hash_ids: list[int] = []  # a digest of the prompt's first 512, 1024, 1536, ... tokens
    endpoint: str
    model: str | None  # None: it went nowhere, so the name may be anything
    stream: bool
    tokens_from: str
    prompt_tokens_counted: int | None
    stages: Stages
    policy: str | None = None  # that was to decide
    digest: str | None = None  # of it: its `LoggedPolicy` came before
    arm: str | None = None
    unit: str | None = None  # these three are salted digests
    client: str | None = None
    asked_by: str | None = None
    attempts: list[LoggedChoice] = []
    shadows: list[LoggedShadow] = []
    status: int | None = None
    error: str | None = None  # how it failed: the last attempt's end, or `UNPLACED`
    ttft_ms: float | None = None
    duration_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    poison: bool = False

    @property
    def at_wall_s(self) -> float:
        return self.timestamp / 1e3


class LogLine(msgspec.Struct, gc=False, omit_defaults=True):
    """One of them is there; none, where a later version wrote something that this one does not know."""

    file: FileHead | None = None
    policy: LoggedPolicy | None = None
    record: LoggedRecord | None = None


decode = msgspec.json.Decoder(LogLine).decode
"""One line, with or without its end. Raises msgspec.ValidationError or msgspec.DecodeError."""
