"""Overlap of a prompt with a whole fleet: groups of targets with equal overlap.

Most targets of a large fleet hold nothing of a prompt, or the same short beginning, and a decision looks at few of
them. So the largest group is not listed: `rest` is the overlap of every target in no other group. The index answers in
bits (`block_holders.py`), where one operation covers all targets; only the members of smaller groups are resolved.

These are the overlaps by the index alone. `unsure` names the targets that need a full estimate (no trusted stream, or
blocks on their way).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from router.kvcache.events import Key, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.speculative import SpeculativeBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt
from scorers.contract import Overlap

NO_OVERLAP = Overlap(0, 0, 0, 0, "events", None)


class OverlapGroup(NamedTuple):
    """Targets with the same overlap."""

    overlap: Overlap  # its age is unset
    targets: Sequence[TargetId]


class OverlapGroups(NamedTuple):
    """The result of `group_overlaps`."""

    groups: Sequence[OverlapGroup]
    rest: Overlap  # of all targets in no group
    unsure: Set[TargetId]  # targets that need a full estimate


def group_overlaps(
    index: BlockIndex,
    speculative: SpeculativeBlocks,
    prompt: TokenizedPrompt,
    initially_unsure: Set[TargetId],
    now: float,
) -> OverlapGroups:
    """Group all joined targets by overlap. `unsure`: targets whose index content is not authoritative; targets that
    will get the next block of a group are added. The cost grows with the targets outside the largest group.
    """
    parts: list[tuple[Overlap, int]] = []
    no_overlap, uncertain = index.all_bits, set(initially_unsure)
    for size in prompt.keys:
        keys = usable(prompt, size)
        for bits, held in index.match_all(keys):
            if held.gpu < len(keys):
                uncertain.update(speculative.targets_expecting(keys[held.gpu], now))
            if held.disk:
                gpu = held.gpu * size
                parts.append((Overlap(gpu, held.cpu * size, held.disk * size, gpu, "events", None), bits))
                no_overlap &= ~bits
    parts.append((NO_OVERLAP, no_overlap))
    parts.sort(key=lambda part: part[1].bit_count())
    rest, _ = parts.pop()
    return OverlapGroups([OverlapGroup(overlap, index.targets_of(bits)) for overlap, bits in parts], rest, uncertain)


def usable(prompt: TokenizedPrompt, size: int) -> Sequence[Key]:
    """Return the keys that can be hit: a hit ends before the last token, which is always computed (protocol 4.5)."""
    keys = prompt.keys[size]
    return keys[:-1] if prompt.complete and len(prompt.ids) == len(keys) * size else keys
