"""Encodes records as lines of the decision log: everything that a replay needs, and nothing that a client wrote.

No prompt and no error text; names of users, keys and units become salted digests, and so do the prompt's blocks.
Views are written as they are, except for the client's name. Pure: no file, no clock. Floats must be finite, as the
contract's are: JSON has no others. Times of outcomes are rounded to the microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from router.features.decision_log.format import (
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
from router.scheduling.policy.decision import Part
from router.scheduling.policy.policy import Policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from scorers.contract import View

HASH_BITS = 48
"""Among a million different blocks, any two share a digest with a probability of 0.18 % (n^2 / 2^49); a given block
shares its digest with another one with a probability of 3.6e-9.
"""


class PseudonymSalt:
    """Turns names into digests that can be compared and reveal nothing else."""

    def __init__(self, salt: int) -> None:
        self._key = blake2b(str(salt).encode()).digest()
        self._seed = int.from_bytes(self._key[:8])

    def digest(self, name: str | bytes | None) -> str | None:
        """Return the digest of a name as 16 hex digits; None for None."""
        if name is None:
            return None
        data = name if isinstance(name, bytes) else name.encode(errors="surrogatepass")
        return blake2b(data, digest_size=8, key=self._key).hexdigest()

    def digest_blocks(self, keys: Sequence[int]) -> list[int]:
        seed, shift = self._seed, 64 - HASH_BITS
        return [xxh3_64_intdigest(key.to_bytes(8), seed) >> shift for key in keys]


class RecordEncoder:
    """Encodes lines, each with its line end, for one file after the other."""

    def __init__(self, salt: int) -> None:
        self._salt = PseudonymSalt(salt)
        self._encode = msgspec.json.Encoder().encode
        self._policies: set[tuple[str, str]] = set()  # policies that the file has a line for

    def start_file(self, run: str, version: str, at_wall_s: float) -> bytes:
        """Begin a new file; return its first line."""
        self._policies.clear()
        return self._line(LogLine(file=FileHead(VERSION, at_wall_s, run, version, FIELDS)))

    def encode_record(self, record: Record) -> bytes:
        """Return the record's line, preceded by its policy's line if the file has none yet.

        Raises TypeError, ValueError or OverflowError for a record that has no JSON form, and then has changed
        nothing.
        """
        line = self._line(LogLine(record=self._log_record(record)))
        policy = record.policy
        if policy is None or (policy.name, policy.digest) in self._policies:
            return line
        policy_line = self._line(LogLine(policy=_log_policy(policy)))
        self._policies.add((policy.name, policy.digest))
        return policy_line + line

    def _line(self, line: LogLine) -> bytes:
        return self._encode(line) + b"\n"

    def _log_record(self, record: Record) -> LoggedRecord:
        policy, attempts = record.policy, record.attempts
        return LoggedRecord(
            id=record.id,
            number=record.number,
            timestamp=round(record.at_wall_s * 1e3),
            input_length=record.prompt_tokens_counted if record.prompt_tokens is None else record.prompt_tokens,
            output_length=record.output_tokens,
            hash_ids=self._salt.digest_blocks(record.blocks),
            endpoint=record.endpoint,
            model=record.model if attempts else None,
            stream=record.stream,
            tokens_from=record.tokens_from,
            prompt_tokens_counted=record.prompt_tokens_counted,
            stages=Stages(*map(_round_ms, msgspec.structs.astuple(record.stages))),
            policy=None if policy is None else policy.name,
            digest=None if policy is None else policy.digest,
            arm=record.arm,
            admission_rule=record.admission_rule,
            full_targets=record.full_targets,
            unit=self._salt.digest(record.unit),
            client=self._salt.digest(record.client),
            asked_by=self._salt.digest(record.asked_by),
            attempts=[self._attempt(attempt) for attempt in attempts],
            shadows=[LoggedShadow(o.policy, o.target, *o.difference) for o in record.shadows],
            status=record.status,
            error=_error(record),
            ttft_ms=_round_ms(record.ttft_ms),
            duration_ms=_round_ms(record.duration_ms),
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            tool_call=record.tool_call,
            poison=record.poison,
            trace_id=record.trace_id,
            alias=record.alias,
            model_arm=record.model_arm,
            fallback=record.fallback,
        )

    def _attempt(self, attempt: Attempt) -> LoggedChoice:
        prefill = None if attempt.prefill is None else self._leg(attempt.prefill)
        return LoggedChoice(
            *self._choice(attempt),
            pool_tokens=attempt.pool_tokens,
            prefill=prefill,
            panic=attempt.panic,
            down=attempt.down,
        )

    def _leg(self, leg: PrefillRecord) -> LoggedChoice:
        duration_ms = _round_ms(leg.duration_ms)
        return LoggedChoice(*self._choice(leg), duration_ms=duration_ms, cached_tokens=leg.cached_tokens)

    def _choice(self, choice: Attempt | PrefillRecord) -> _Choice:
        decision = choice.decision
        view, part = decision.view, decision.part
        return _Choice(
            view, part, decision.policy, decision.target, choice.end, choice.predicted_tokens, choice.expected_tokens
        )


class _Choice(NamedTuple):
    """The fields common to both kinds of choices, in the order of `LoggedChoice`."""

    view: View
    part: Part
    policy: str
    target: str
    end: str
    predicted_tokens: int | None
    expected_tokens: int | None


def _log_policy(policy: Policy) -> LoggedPolicy:
    return LoggedPolicy(
        policy.name, policy.digest, None if policy.spec is None else policy.spec.model_dump(mode="json")
    )


def _error(record: Record) -> str | None:
    """Return how the request failed; the record's own error text may quote the client."""
    if not record.attempts:
        return UNPLACED
    end = record.attempts[-1].end
    return None if end == "ok" else end


def _round_ms(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
