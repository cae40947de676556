"""The decision log's file format, as types that msgspec reads and writes.

    {"file":   {version, started_at_wall_s, run, warmroute, fields}}   the first line of every file
    {"policy": {name, digest, spec}}      before the policy's first record, so that every file can be read alone
    {"record": {...}}                     a request, once it has ended (`LoggedRecord`)

Views are arrays in the order of the contract's fields, which `fields` lists; floats have their shortest exact form.
A view of a large fleet has rows for the targets that could win, and counts the `others`
(`scheduling/policy/pruning.py`). Views have rows and not columns: columns take a sixth less space, but msgspec
reads and writes rows by itself, twice as fast, and a row that has not changed since the previous record costs next
to nothing once compressed. A record is also a request of a Mooncake trace (`timestamp` in ms, `input_length`,
`output_length`, `hash_ids` per 512 tokens), as in https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release,
except for a last block that is not full.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.config import schema
from router.scheduling.policy.decision import Part
from router.scheduling.policy.record import Stages
from scorers.contract import Ask, Decode, Load, Overlap, PoolHit, Row, Speed, Transfer, View

VERSION = 2
OLDEST_VERSION = 1
"""The oldest version that can be read. It has another name for the stage `admission_ms` (`OLD_NAMES`)."""

OLD_NAMES = ((b'"door_ms"', b'"admission_ms"'),)
UNPLACED = "unplaced"
CONTRACT = (View, Row, Overlap, Load, Speed, Transfer, Decode, PoolHit, Ask)
FIELDS = {kind.__name__: list(kind._fields) for kind in CONTRACT}


class FileHead(msgspec.Struct, frozen=True):
    """The first line of a file."""

    version: int
    started_at_wall_s: float
    run: str  # prefix of the ids of the process's records
    warmroute: str  # its version
    fields: dict[str, list[str]]


class LoggedPolicy(msgspec.Struct, frozen=True):
    """A policy to which records of the file refer."""

    name: str
    digest: str
    spec: dict[str, Any] | None  # as in a policy file; None: it was built in code

    @property
    def policy(self) -> schema.PolicyConfig | None:
        """Return the policy. pydantic raises `ValidationError` for keys of a later version."""
        return None if self.spec is None else schema.PolicyConfig.model_validate(self.spec)


class LoggedChoice(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One decision, with everything it was based on, and how the attempt ended."""

    view: View
    part: Part
    policy: str  # that decided: the fallback if the record's failed, a half of a policy for half of a pair
    target: str
    end: str  # an `AttemptEnd` or `LegEnd`, or one of a later version
    predicted_tokens: int | None = None
    expected_tokens: int | None = None
    pool_tokens: int | None = None
    duration_ms: float | None = None  # of a prefill half
    cached_tokens: int | None = None  # of a prefill half
    prefill: LoggedChoice | None = None  # the prefill half of a pair
    panic: bool = False  # this and the next field are as in `Attempt`
    down: bool = False


class LoggedShadow(msgspec.Struct, frozen=True, gc=False):
    """The choice that a shadow would have made: see `ShadowChoice` and `Regret`."""

    policy: str
    target: str
    ttft_ms: float
    overlap_tokens: int | None


class LoggedRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A record in the decision log. Times of its outcome are rounded to the microsecond."""

    id: str
    number: int
    timestamp: int  # ms since the epoch
    input_length: int | None  # tokens: the engine's count, else the router's
    output_length: int | None
    hash_ids: list[int] = []  # a digest of the prompt's first 512, 1024, 1536, ... tokens
    endpoint: str
    model: str | None  # None: not placed, so the client's name may be anything
    stream: bool
    tokens_from: str
    prompt_tokens_counted: int | None
    stages: Stages
    policy: str | None = None  # assigned to the request
    digest: str | None = None  # of the policy, whose `LoggedPolicy` line came before
    arm: str | None = None
    admission_rule: str | None = None  # these two as in `Record`
    full_targets: list[str] = []
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
    tool_call: bool | None = None  # as in `Record`
    poison: bool = False
    trace_id: str | None = None  # as in `Record`
    alias: str | None = None  # these three as in `Record`
    model_arm: str | None = None
    fallback: str | None = None

    @property
    def at_wall_s(self) -> float:
        return self.timestamp / 1e3


class LogLine(msgspec.Struct, gc=False, omit_defaults=True):
    """One line, with one of the fields set; none is set for a kind of line from a later version."""

    file: FileHead | None = None
    policy: LoggedPolicy | None = None
    record: LoggedRecord | None = None


decode = msgspec.json.Decoder(LogLine).decode
"""Decodes one line, with or without its line end. Raises `msgspec.ValidationError` or `msgspec.DecodeError`."""
