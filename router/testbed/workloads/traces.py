"""Mooncake's and Azure's traces, and our own decision log, as open-loop workloads; unusable lines are reported.

Mooncake's traces (https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release) name each block of 512 tokens, the
last one partial, by a hash of it with everything before it. So ids form a tree, and a prompt is a path in it. A path
becomes few spans: the first continuation of a block stays in that block's source, and every other one begins a source
of its own. The decision log names full blocks only; Azure's traces name none.

It opens no files; `router/testbed/workloads/source.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec

from router.telemetry.decision_log.format import LoggedRecord
from router.testbed.workloads.arrivals import OpenArrivals
from router.testbed.workloads.model import Span, Workload

BLOCK_TOKENS = 512
CHAIN_BITS = 20  # of a place: number of blocks before it in the same source

Count = Annotated[int, msgspec.Meta(ge=0)]


class UnusableLines(NamedTuple):
    """A line or record that was left out."""

    where: str  # "line 17", counting from 1; "record abc-17"
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class Trace(NamedTuple):
    """A workload with times from its first request, and what was left out."""

    workload: Workload
    unusable: tuple[UnusableLines, ...]


class TraceLine(msgspec.Struct, gc=False):
    """A line of a Mooncake trace. Other keys are ignored."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]  # ms
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Count
    hash_ids: list[int] = []


class HashIdTree:
    """Converts hash ids to spans. Ids of different prompts must form a tree, as prefixes do."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # hash id -> its source and the number of blocks before it there
        self._after: list[int | None] = []  # per source: the place that it branches off
        self._lengths: list[int] = []  # per source: blocks

    def prompt(self, ids: Sequence[int], tokens: int) -> list[Span]:
        """Return spans of `tokens` in all: the blocks of `ids`, then tokens of its own.

        Raises ValueError for an id that followed another block earlier.
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
        """Return the place of a block that follows `here`, or raise ValueError if it followed another one earlier."""
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
    """Read the lines of a Mooncake trace; a line that raises ValueError is left out."""
    decode = msgspec.json.Decoder(TraceLine).decode
    chains, arrivals, unusable = HashIdTree(), OpenArrivals(), list[UnusableLines]()
    for number, line in enumerate(lines, 1):
        try:
            request = decode(line)
            if len(request.hash_ids) != -(-request.input_length // BLOCK_TOKENS):
                raise ValueError(
                    f"{len(request.hash_ids)} hash_ids for {request.input_length} tokens: "
                    f"there must be one per {BLOCK_TOKENS}, the last one partial"
                )
            prompt = chains.prompt(request.hash_ids, request.input_length)
        except (msgspec.DecodeError, ValueError) as wrong:
            unusable.append(UnusableLines(f"line {number}", str(wrong)))
            continue
        arrivals.add(request.timestamp / 1e3, prompt, max(1, request.output_length))
    return _trace(name, arrivals, unusable)


def read_azure(lines: Iterable[bytes], name: str) -> Trace:
    """Read the lines of an Azure LLM inference trace (https://github.com/Azure/AzurePublicDataset).

    It does not say which prompts share tokens, so none do. A line that raises ValueError is left out.
    """
    numbered: Iterator[tuple[int, bytes]] = enumerate(lines, 1)
    arrivals, unusable = OpenArrivals(), list[UnusableLines]()
    _, head = next(numbered, (1, b""))
    if _cells(head) != ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]:
        unusable.append(UnusableLines("line 1", "the columns must be TIMESTAMP,ContextTokens,GeneratedTokens"))
    for number, line in numbered:
        try:
            at, prompt_cell, output_cell = _cells(line)
            time = datetime.fromisoformat(at)
            tokens, output_tokens = int(prompt_cell), int(output_cell)
            if tokens < 1 or output_tokens < 0:
                raise ValueError(f"{tokens} tokens in and {output_tokens} out")
        except ValueError as wrong:
            unusable.append(UnusableLines(f"line {number}", str(wrong)))
            continue
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        arrivals.add(time.timestamp(), [Span(number, tokens)], max(1, output_tokens))
    return _trace(name, arrivals, unusable)


def read_decision_log(records: Iterable[LoggedRecord], name: str) -> Trace:
    """Return the requests of a decision log, at their own times.

    Lengths are those that engines reported, if they did. A prompt without known blocks shares nothing. A request
    without an answer has no length (ValueError) and is left out. Requests of one session have the same number.
    """
    chains, arrivals, unusable = HashIdTree(), OpenArrivals(), list[UnusableLines]()
    numbers: dict[object, int] = {}
    for record in records:
        tokens, output_tokens = record.input_length, record.output_length
        try:
            if not tokens:
                raise ValueError("its prompt was not counted")
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
