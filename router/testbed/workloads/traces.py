"""Traces of others, and our own decision log, as workloads: lines in, an open loop out, and every line that was no use
named.

Mooncake's traces (https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release) name each block of 512 tokens, the
last one partial, by a hash of it with everything before it. So ids form a tree, and a prompt is a path in it. A path
becomes few spans: whatever continues a block for the first time goes on in that block's source, and only what continues
it otherwise begins a source of its own. The decision log names full blocks only; Azure's traces name none.

Pure: who opens the files is above this floor (`router/testbed/workloads/source.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec

from router.telemetry.decision_log.format import LoggedRecord
from router.testbed.workloads import OpenArrivals, Span, Workload

BLOCK_TOKENS = 512
CHAIN_BITS = 20  # of a place: how many blocks before it are of the same source

Count = Annotated[int, msgspec.Meta(ge=0)]


class UnusableLines(NamedTuple):
    """What could not be taken over, and was left out."""

    where: str  # "line 17", counting from 1; "record abc-17"
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class Trace(NamedTuple):
    """Times count from the first request."""

    workload: Workload
    unusable: tuple[UnusableLines, ...]


class TraceLine(msgspec.Struct, gc=False):
    """A line of a Mooncake trace. Other keys are passed over."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]  # ms
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Count
    hash_ids: list[int] = []


class HashIdTree:
    """From hash ids to spans. Ids of different prompts must form a tree, as prefixes do."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # hash id -> its source and how many blocks of it come before
        self._after: list[int | None] = []  # per source: the place that it branches off from
        self._lengths: list[int] = []  # per source: blocks

    def prompt(self, ids: Sequence[int], tokens: int) -> list[Span]:
        """Spans of `tokens` in all: the named blocks, as far as they go, then tokens of its own.

        Raises ValueError for an id that came after another block before.
        """
        here: int | None = None
        spans: list[Span] = []
        left = tokens
        for hash_id in ids:
            here = self._place(hash_id, here)
            source, before = here >> CHAIN_BITS, here & (1 << CHAIN_BITS) - 1
            span = Span(source, before * BLOCK_TOKENS + min(left, BLOCK_TOKENS))
            left -= BLOCK_TOKENS
            if spans and before:
                spans[-1] = span
            else:
                spans.append(span)
        if left > 0:
            spans.append(Span(self._begin(here), left))
        return spans

    def _place(self, hash_id: int, here: int | None) -> int:
        """Of a block that follows `here`."""
        place = self._places.get(hash_id)
        if place is None:
            place = self._places[hash_id] = self._next(here)
        elif self._before(place) != here:
            raise ValueError(f"hash id {hash_id} came after another block in an earlier line, or twice in this one")
        return place

    def _next(self, here: int | None) -> int:
        if here is not None:
            source, before = here >> CHAIN_BITS, here & (1 << CHAIN_BITS) - 1
            if self._lengths[source] == before + 1:
                self._lengths[source] += 1
                return here + 1
        return self._begin(here) << CHAIN_BITS

    def _begin(self, here: int | None) -> int:
        self._after.append(here)
        self._lengths.append(1)
        return len(self._lengths) - 1

    def _before(self, place: int) -> int | None:
        return place - 1 if place & (1 << CHAIN_BITS) - 1 else self._after[place >> CHAIN_BITS]


def read_mooncake(lines: Iterable[bytes], name: str) -> Trace:
    decode = msgspec.json.Decoder(TraceLine).decode
    chains, arrivals, unusable = HashIdTree(), OpenArrivals(), list[UnusableLines]()
    for number, line in enumerate(lines, 1):
        try:
            asked = decode(line)
            if len(asked.hash_ids) != -(-asked.input_length // BLOCK_TOKENS):
                raise ValueError(
                    f"{len(asked.hash_ids)} hash_ids for {asked.input_length} tokens: "
                    f"wanted one per {BLOCK_TOKENS}, the last one partial"
                )
            prompt = chains.prompt(asked.hash_ids, asked.input_length)
        except (msgspec.DecodeError, ValueError) as wrong:
            unusable.append(UnusableLines(f"line {number}", str(wrong)))
            continue
        arrivals.add(asked.timestamp / 1e3, prompt, max(1, asked.output_length))
    return _trace(name, arrivals, unusable)


def read_azure(lines: Iterable[bytes], name: str) -> Trace:
    """Azure's LLM inference traces (https://github.com/Azure/AzurePublicDataset): nothing in them says who shares what,
    so nobody shares anything.
    """
    numbered: Iterator[tuple[int, bytes]] = enumerate(lines, 1)
    arrivals, unusable = OpenArrivals(), list[UnusableLines]()
    _, head = next(numbered, (1, b""))
    if _cells(head) != ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]:
        unusable.append(UnusableLines("line 1", "wanted TIMESTAMP,ContextTokens,GeneratedTokens"))
    for number, line in numbered:
        try:
            at, given, made = _cells(line)
            moment = datetime.fromisoformat(at)
            tokens, output_tokens = int(given), int(made)
            if tokens < 1 or output_tokens < 0:
                raise ValueError(f"{tokens} tokens in and {output_tokens} out")
        except ValueError as wrong:
            unusable.append(UnusableLines(f"line {number}", str(wrong)))
            continue
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        arrivals.add(moment.timestamp(), [Span(number, tokens)], max(1, output_tokens))
    return _trace(name, arrivals, unusable)


def read_decision_log(records: Iterable[LoggedRecord], name: str) -> Trace:
    """What clients asked of a router. Lengths are the engines' own where they said them; a prompt whose blocks nobody
    knew shares nothing. A request without an answer has no length and is left out. Requests of one session have one
    number, and still come when they came.
    """
    chains, arrivals, unusable = HashIdTree(), OpenArrivals(), list[UnusableLines]()
    numbers: dict[object, int] = {}
    for record in records:
        tokens, output_tokens = record.input_length, record.output_length
        try:
            if not tokens:
                raise ValueError("nobody counted its prompt")
            if output_tokens is None:
                raise ValueError(f"it has no answer (status {record.status}, {record.error or 'no error'})")
            prompt = chains.prompt(record.hash_ids[: tokens // BLOCK_TOKENS], tokens)
        except ValueError as wrong:
            unusable.append(UnusableLines(f"record {record.id}", str(wrong)))
            continue
        session = record.attempts[0].view.session if record.attempts else None
        number = numbers.setdefault(record.id if session is None else ("session", session), len(numbers))
        arrivals.add(record.at_wall_s, prompt, max(1, output_tokens), number)
    return _trace(name, arrivals, unusable)


def _trace(name: str, arrivals: OpenArrivals, unusable: list[UnusableLines]) -> Trace:
    ordered = arrivals.in_order()
    if len(ordered):
        ordered = ordered.since(ordered[0].start_s)
    return Trace(Workload(name, 0, ordered, is_closed=False), tuple(unusable))


def _cells(line: bytes) -> list[str]:
    return [cell.strip() for cell in line.decode("utf-8-sig").strip().split(",")]
