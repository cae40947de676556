"""A workload as a Mooncake trace file: timestamps in ms, lengths, and a number per block of 512 tokens.

Blocks are numbered in the order of their first occurrence, full ones and a prompt's last partial one alike; the same
number means the same block after the same blocks. Reading the lines back (`traces.py`) gives the same requests with the
same shared prefixes, as an open loop: that a turn waited for an answer is lost, as in every such trace.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from router.errors import ConfigError, WarmrouteError
from router.testbed.workloads.block_names import SessionContext
from router.testbed.workloads.model import DEFAULT_PACE, ClosedLoopPace, Span, Workload, lay_out
from router.testbed.workloads.traces import BLOCK_TOKENS

FILLER = 1 << 63
"""The source that fills up a last partial block, so that it gets a name like any other."""


def encode_mooncake(workload: Workload, pace: ClosedLoopPace = DEFAULT_PACE) -> Iterator[bytes]:
    """Yield the lines in the order of their times, line ends included. `pace` gives a closed loop its times."""
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

    A file that cannot be written to its end is removed: half a trace looks like a whole one. Raises ConfigError for a
    name of no known format, WarmrouteError when the system refuses to write.
    """
    if not file.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"--out: {file}: the name must end in .jsonl or .jsonl.gz")
    unfinished = file.with_name(file.name + ".tmp")
    count = 0
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as disk, _compress(disk) if file.suffix == ".gz" else nullcontext(disk) as out:
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
