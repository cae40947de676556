"""Conversion of Mooncake traces, Azure traces and decision logs to open loops, and of workloads to Mooncake traces.

Mooncake's traces (https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release) name each block of 512 tokens,
the last one partial, by a hash over the block and everything before it. So ids form a tree, and a prompt is a path
in the tree. A path becomes few spans: the first continuation of a block stays in the block's source, and every
other continuation begins a new source. The decision log names full blocks only; Azure's traces name none. Unusable
lines are reported.

A workload is written with its blocks, full ones and a prompt's last partial one alike, numbered in the order of
their first occurrence: the same number means the same block after the same blocks. Reading the lines back gives the
same requests with the same shared prefixes, as an open loop: as in every such trace, the waiting of a turn for an
answer is lost. `router/lab/workloads/source.py` opens the files that are read.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

import msgspec

from router.config.private_files import open_private
from router.errors import ConfigError, WarmrouteError
from router.features.decision_log.format import LoggedRecord
from router.lab.workloads.arrivals import OpenArrivals
from router.lab.workloads.block_names import SessionContext
from router.lab.workloads.model import DEFAULT_PACE, ClosedLoopPace, Span, Workload, lay_out

BLOCK_TOKENS = 512
CHAIN_BITS = 20  # of a place: number of blocks before it in the same source

FILLER = 1 << 63  # source that fills up a last partial block, so that it gets a name like any other block

Count = Annotated[int, msgspec.Meta(ge=0)]


class UnusableLines(NamedTuple):
    """A line or record that was left out."""

    where: str  # "line 17", counting from 1; "record abc-17"
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class Trace(NamedTuple):
    """A workload with times counted from its first request, and the lines left out."""

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
        self._after: list[int | None] = []  # per source: the place where it branches off
        self._lengths: list[int] = []  # per source: blocks

    def prompt(self, ids: Sequence[int], tokens: int) -> list[Span]:
        """Return spans of `tokens` tokens: the blocks of `ids`, then tokens of this prompt only. Raises ValueError
        if the ids form no tree.
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
        """Return the place of a block that follows `here`. Raises ValueError if it earlier followed another."""
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

    The trace does not show which prompts share tokens, so none do. A line that raises ValueError is left out.
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
    """Return the requests of a decision log, with their logged times.

    Lengths are as reported by engines, if they were. A prompt without known blocks shares nothing. A request
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


def encode_mooncake(workload: Workload, pace: ClosedLoopPace = DEFAULT_PACE) -> Iterator[bytes]:
    """Yield trace lines with line ends, in the order of their times. `pace` determines a closed loop's times."""
    numbers: dict[int, int] = {}
    for request in lay_out(workload, pace):
        line = {
            "timestamp": round(request.at_s * 1e3),
            "input_length": sum(span.tokens for span in request.prompt),
            "output_length": request.output_tokens,
            "hash_ids": [numbers.setdefault(name, len(numbers)) for name in _names(request.prompt)],
        }
        yield msgspec.json.encode(line) + b"\n"


def _names(prompt: Sequence[Span]) -> Sequence[int]:
    blocks = SessionContext(BLOCK_TOKENS)
    for span in prompt:
        blocks.add(span)
    if missing := -blocks.tokens % BLOCK_TOKENS:
        blocks.add(Span(FILLER, missing))
    return blocks.names


def write_lines(file: Path, lines: Iterable[bytes]) -> int:
    """Write `lines` to `file`, compressed if its name ends in .gz, and return their number.

    A file that cannot be written completely is removed, because half a trace looks like a whole one. Raises
    ConfigError for a name of no known format, WarmrouteError when the system fails to write.
    """
    if not file.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"--out: {file}: the name must end in .jsonl or .jsonl.gz")
    unfinished = file.with_name(file.name + ".tmp")
    count = 0
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        with (
            open(unfinished, "xb", opener=open_private) as disk,
            _compress(disk) if file.suffix == ".gz" else nullcontext(disk) as out,
        ):
            for line in lines:
                out.write(line)
                count += 1
        unfinished.replace(file)
    except OSError as failure:
        raise WarmrouteError(f"--out: {file}: {(failure.strerror or str(failure)).lower()}") from failure
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return count


def _compress(disk: BinaryIO) -> gzip.GzipFile:
    """Return a gzip file without name and time, so that equal lines give equal bytes."""
    return gzip.GzipFile("", "wb", fileobj=disk, mtime=0)
