"""A workload as lines of a Mooncake trace: timestamps in ms, lengths, and a number per block of 512 tokens.

Numbers are given in the order in which blocks first appear, to full ones and to a prompt's last partial one alike; the
same number means the same block after the same blocks. Reading the lines back (`traces.py`) gives the same requests
with the same shared beginnings, as an open loop: what a next turn waited for is lost, as in every such trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from router.testbed.workloads import Span, Workload
from router.testbed.workloads.block_names import SessionContext
from router.testbed.workloads.timeline import DEFAULT_PACE, ClosedLoopPace, lay_out
from router.testbed.workloads.traces import BLOCK_TOKENS

FILLER = 1 << 63
"""The source that fills up a last block, so that it gets a name like any other."""


def encode_mooncake(workload: Workload, pace: ClosedLoopPace = DEFAULT_PACE) -> Iterator[bytes]:
    """In the order of time, each with its end. `pace` gives a closed loop its times."""
    numbers: dict[int, int] = {}
    for sent in lay_out(workload, pace):
        line = {
            "timestamp": round(sent.at_s * 1e3),
            "input_length": sum(span.tokens for span in sent.prompt),
            "output_length": sent.output_tokens,
            "hash_ids": [numbers.setdefault(name, len(numbers)) for name in _names(sent.prompt)],
        }
        yield msgspec.json.encode(line) + b"\n"


def _names(prompt: Sequence[Span]) -> Sequence[int]:
    blocks = SessionContext(BLOCK_TOKENS)
    for span in prompt:
        blocks.add(span)
    if missing := -blocks.tokens % BLOCK_TOKENS:
        blocks.add(Span(FILLER, missing))
    return blocks.names
