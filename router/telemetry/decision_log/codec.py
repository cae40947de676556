"""From a record to its line in the ledger: everything that a replay needs, and nothing that a client wrote.

No prompt and no error text; names of users, keys and units become salted digests, and so do the prompt's blocks. Views
go as they are, but for the client's name. Pure: no file, no clock. Floats must be finite, as the contract's are: JSON
has no others. Times of outcomes are rounded to the microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from router.scheduling.policy.decision import Part
from router.scheduling.policy.policy import Policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from router.telemetry.decision_log.format import (
    FIELDS,
    UNPLACED,
    VERSION,
    FileHead,
    LoggedChoice,
    LoggedPolicy,
    LoggedRecord,
    LoggedShadow,
    LogLine,
)
from scorers.contract import View

HASH_BITS = 48
"""Two of a million different blocks share a digest with a chance of 0.18 % (n^2 / 2^49); a given one with any other, of
3.6e-9.
"""


class PseudonymSalt:
    """Turns names into digests that say "the same" and nothing else."""

    def __init__(self, salt: int) -> None:
        self._key = blake2b(str(salt).encode()).digest()
        self._seed = int.from_bytes(self._key[:8])

    def name(self, name: str | bytes | None) -> str | None:
        """16 hex digits."""
        if name is None:
            return None
        data = name if isinstance(name, bytes) else name.encode(errors="surrogatepass")
        return blake2b(data, digest_size=8, key=self._key).hexdigest()

    def blocks(self, keys: Sequence[int]) -> list[int]:
        seed, away = self._seed, 64 - HASH_BITS
        return [xxh3_64_intdigest(key.to_bytes(8), seed) >> away for key in keys]


class RecordEncoder:
    """Lines, each with its end, of one file after the other."""

    def __init__(self, salt: int) -> None:
        self._salt = PseudonymSalt(salt)
        self._encode = msgspec.json.Encoder().encode
        self._named: set[tuple[str, str]] = set()  # policies that the file has a line of

    def opening(self, run: str, version: str, at_wall_s: float) -> bytes:
        """The first line of a new file."""
        self._named.clear()
        return self._line(LogLine(file=FileHead(VERSION, at_wall_s, run, version, FIELDS)))

    def lines(self, record: Record) -> bytes:
        """The record's line, after its policy's where the file has none yet.

        Raises TypeError, ValueError or OverflowError for a record that has no JSON, and then nothing has changed.
        """
        line = self._line(LogLine(record=self._logged(record)))
        policy = record.policy
        if policy is None or (policy.name, policy.digest) in self._named:
            return line
        known = self._line(LogLine(policy=_policy(policy)))
        self._named.add((policy.name, policy.digest))
        return known + line

    def _line(self, line: LogLine) -> bytes:
        return self._encode(line) + b"\n"

    def _logged(self, record: Record) -> LoggedRecord:
        policy, attempts = record.policy, record.attempts
        return LoggedRecord(
            id=record.id,
            number=record.number,
            timestamp=round(record.at_wall_s * 1e3),
            input_length=record.prompt_tokens_counted if record.prompt_tokens is None else record.prompt_tokens,
            output_length=record.output_tokens,
            hash_ids=self._salt.blocks(record.blocks),
            endpoint=record.endpoint,
            model=record.model if attempts else None,
            stream=record.stream,
            tokens_from=record.tokens_from,
            prompt_tokens_counted=record.prompt_tokens_counted,
            stages=Stages(*map(_microseconds, msgspec.structs.astuple(record.stages))),
            policy=None if policy is None else policy.name,
            digest=None if policy is None else policy.digest,
            arm=record.arm,
            unit=self._salt.name(record.unit),
            client=self._salt.name(record.client),
            asked_by=self._salt.name(record.asked_by),
            attempts=[self._attempt(attempt) for attempt in attempts],
            shadows=[LoggedShadow(o.policy, o.target, *o.difference) for o in record.shadows],
            status=record.status,
            error=_error(record),
            ttft_ms=_microseconds(record.ttft_ms),
            duration_ms=_microseconds(record.duration_ms),
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            poison=record.poison,
        )

    def _attempt(self, attempt: Attempt) -> LoggedChoice:
        prefill = None if attempt.prefill is None else self._leg(attempt.prefill)
        return LoggedChoice(*self._choice(attempt), pool_tokens=attempt.pool_tokens, prefill=prefill)

    def _leg(self, leg: PrefillRecord) -> LoggedChoice:
        duration_ms = _microseconds(leg.duration_ms)
        return LoggedChoice(*self._choice(leg), duration_ms=duration_ms, cached_tokens=leg.cached_tokens)

    def _choice(self, made: Attempt | PrefillRecord) -> _Made:
        decision = made.decision
        view, part = decision.view, decision.part
        return _Made(
            view, part, decision.policy, decision.target, made.end, made.predicted_tokens, made.expected_tokens
        )


class _Made(NamedTuple):
    """What the two kinds of choices have in common, in the order of `LoggedChoice`."""

    view: View
    part: Part
    policy: str
    target: str
    end: str
    predicted_tokens: int | None
    expected_tokens: int | None


def _policy(policy: Policy) -> LoggedPolicy:
    return LoggedPolicy(
        policy.name, policy.digest, None if policy.spec is None else policy.spec.model_dump(mode="json")
    )


def _error(record: Record) -> str | None:
    """The record's own may quote the client."""
    if not record.attempts:
        return UNPLACED
    end = record.attempts[-1].end
    return None if end == "ok" else end


def _microseconds(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
