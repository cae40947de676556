"""How often the blocks of a workload's prompts are asked for: few by everybody, most by nobody again.

This, and not the mean, decides how big a cache must be and whether hot blocks want more copies than one.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from router.testbed.workloads import Workload
from router.testbed.workloads.block_names import SessionContext
from router.testbed.workloads.timeline import ClosedLoopPace, lay_out


class BlockReuse(NamedTuple):
    blocks: int  # different full blocks in all prompts
    mean_uses: float  # prompts that have one
    most_uses: int
    again_share: float  # of the blocks, those that more than one prompt has


def count_reuse(workload: Workload, block_tokens: int) -> BlockReuse | None:
    """None: no prompt fills a block."""
    uses: Counter[int] = Counter()
    for sent in lay_out(workload, ClosedLoopPace(at_once=1)):
        prompt = SessionContext(block_tokens)
        for span in sent.prompt:
            prompt.add(span)
        uses.update(prompt.names)
    if not uses:
        return None
    again = sum(1 for count in uses.values() if count > 1)
    return BlockReuse(len(uses), uses.total() / len(uses), max(uses.values()), again / len(uses))
